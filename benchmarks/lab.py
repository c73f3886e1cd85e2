"""The lab's line (docs/evidence.md): a 131,072-token toy prefix of 37 bytes a token, persisted and reloaded.

0.06 s and 0.082 s are what the lab needed for the two, in one process. Ours goes through the
service, every record verified, and counts as persisted once it is committed to disk.
"""

import time

from benchmarks.measure import Figure, Timing
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.layout import CarryStream, HistoryStream, Layout, WindowStream

PREFIX_TOKENS, BLOCK_TOKENS, DIM, INDEX_DIM = 131_072, 512, 32, 4
LAB_PERSIST_SECONDS, LAB_RELOAD_SECONDS = 0.06, 0.082


def toy_layout() -> Layout:
    """Our reading of the lab's model: a CSA layer with an indexer of 4 dims and an HCA layer, 32 dims, float32."""

    def history(name: str, layer: int, ratio: int, dim: int) -> HistoryStream:
        return HistoryStream(
            kind="history", name=name, layer=layer, tokens_per_row=ratio, row_shape=(dim,), dtype="float32"
        )

    windows = [
        WindowStream(kind="window", name="window", layer=layer, rows=127, row_shape=(DIM,), dtype="float32")
        for layer in (0, 1)
    ]
    overlap = CarryStream(kind="carry", name="csa_overlap_kv", layer=0, rows=4, row_shape=(DIM,), dtype="float32")
    return Layout(
        version=1, model="lab-toy", chained=True, block_tokens=BLOCK_TOKENS, layers=2, replay_tokens=255,
        streams=(history("csa", 0, 4, DIM), history("csa_index", 0, 4, INDEX_DIM), history("hca", 1, 128, DIM),
                 *windows, overlap),
        identity={},
    )  # fmt: skip


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    blocks = 2 if tiny else PREFIX_TOKENS // BLOCK_TOKENS
    persist, reload = [], []
    with running_service("--capacity", "1GiB") as service, Client(service.url) as client:
        for seed in range(rounds + 1):
            prefix = Prefix(toy_layout(), blocks, seed=seed)
            records = prefix.records(0, blocks + 1)
            client.register(prefix.layout)
            start = time.perf_counter()
            client.store(prefix.layout, records, codec="raw")
            persist.append(time.perf_counter() - start)
            start = time.perf_counter()
            prefix.fetch(client)
            reload.append(time.perf_counter() - start)
    size = f"{prefix.payload_bytes / 1e6:.2f} MB, {blocks * BLOCK_TOKENS:,} tokens"
    return [
        _figure("lab prefix: persist, committed", persist, size, LAB_PERSIST_SECONDS),
        _figure("lab prefix: look up and reload, verified", reload, size, LAB_RELOAD_SECONDS),
    ]


def _figure(work: str, seconds: list[float], size: str, lab_seconds: float) -> Figure:
    timing = Timing(tuple(seconds[1:]))
    detail = f"{size}; {timing.spread} s; the lab, without a network: {lab_seconds} s"
    return Figure(work, timing.median, "s", detail, at_most=lab_seconds)
