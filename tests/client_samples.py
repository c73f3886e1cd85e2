"""Layouts, prompts and records for the tests of the client; payloads are told from their key alone."""

import hashlib
import random
from collections.abc import Iterable, Sequence

from kvcairn_client.budgets import Budgets
from kvcairn_client.records import Outgoing, Wanted
from kvcairn_protocol.layout import CarryStream, HistoryStream, Kind, Layout, WindowStream

BLOCK_TOKENS = 8
QUICK = Budgets(connect_seconds=0.5, control_seconds=0.5, fetch_seconds=0.8, store_seconds=0.8, stall_seconds=0.3)
"""Budgets that let a test see them exceeded."""


def layout(model: str = "org/model@1", *, row_bytes: int = 256) -> Layout:
    """Blocks of 8 tokens: history of 2 rows, states of 4 window rows and 2 carry rows, window records of 4 rows."""
    return Layout(
        version=1, model=model, chained=True, block_tokens=BLOCK_TOKENS, layers=2, replay_tokens=6,
        streams=(
            HistoryStream(kind="history", name="csa", layer=0, tokens_per_row=4, row_shape=(row_bytes,), dtype="uint8"),
            WindowStream(kind="window", name="window", layer=1, rows=4, row_shape=(row_bytes // 4,), dtype="float16"),
            CarryStream(kind="carry", name="overlap", layer=0, rows=2, row_shape=(row_bytes // 8,), dtype="float32"),
        ),
        identity={"rope": "none"},
    )  # fmt: skip


def key(index: int) -> bytes:
    """The key of block `index` of the one prompt that these tests know."""
    return hashlib.sha256(b"block %d" % index).digest()


def keys(count: int) -> list[bytes]:
    return [key(index) for index in range(count)]


def payload(used: Layout, kind: Kind, index: int) -> bytes:
    """Random bytes for even blocks, bytes that compress well for odd ones; never two alike."""
    size_bytes = used.payload_bytes(kind)
    if index % 2:
        return (b"%d %d " % (kind, index) * size_bytes)[:size_bytes]
    return random.Random(f"{kind} {index}").randbytes(size_bytes)


def outgoing(used: Layout, kind: Kind, index: int) -> Outgoing:
    parent = key(index - 1)[:16] if index else bytes(16)
    return Outgoing(kind, key(index), (index + 1) * BLOCK_TOKENS, parent, payload(used, kind, index))


def prompt(used: Layout, blocks: int, *, states: Iterable[int] = ()) -> list[Outgoing]:
    """The history of the first blocks, then states at the ends of some."""
    history = [outgoing(used, Kind.HISTORY, index) for index in range(blocks)]
    return history + [outgoing(used, Kind.STATE, index) for index in states]


def wanted(used: Layout, records: Sequence[Outgoing], *, filler: int = 0xA5) -> tuple[list[Wanted], list[bytearray]]:
    """Each record as a wish, with a buffer of its own."""
    buffers = [bytearray([filler]) * used.payload_bytes(record.kind) for record in records]
    wishes = [
        Wanted(record.kind, record.key, record.position, memoryview(buffer))
        for record, buffer in zip(records, buffers, strict=True)
    ]
    return wishes, buffers
