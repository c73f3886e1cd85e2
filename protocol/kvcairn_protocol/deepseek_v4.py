"""Ready-made layouts: the packed formats that deployed engines keep for DeepSeek-V4-Flash and V4-Pro.

One compressed or window entry is 584 bytes, one indexer key 132 bytes (FP8) or 68 bytes (FP4); overlap rows are
float32. Sizes in bytes: docs/evidence.md. For a model loaded in transformers, see kvcairn_client.transformers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import CarryStream, HistoryStream, Layout, Stream, WindowStream

CSA_RATIO, HCA_RATIO = 4, 128
WINDOW_TOKENS = 128
ENTRY_BYTES = 584
INDEXER_KEY_BYTES = {"fp8": 132, "fp4": 68}
HEAD_DIM, INDEXER_DIM = 512, 128

FLASH_RATIOS = (0, 0, *((CSA_RATIO, HCA_RATIO) * 20), CSA_RATIO)
PRO_RATIOS = (HCA_RATIO, HCA_RATIO, *((CSA_RATIO, HCA_RATIO) * 29), CSA_RATIO)

Indexer = Literal["fp8", "fp4"]


def flash(model: str, *, indexer: Indexer = "fp8", block_tokens: int = 512) -> Layout:
    """The packed layout of V4-Flash: 43 layers, of which 21 CSA and 20 HCA; `model` names weights and revision."""
    return packed(model, FLASH_RATIOS, indexer=indexer, block_tokens=block_tokens)


def pro(model: str, *, indexer: Indexer = "fp8", block_tokens: int = 512) -> Layout:
    """The packed layout of V4-Pro: 61 layers, of which 30 CSA and 31 HCA; `model` names weights and revision."""
    return packed(model, PRO_RATIOS, indexer=indexer, block_tokens=block_tokens)


def packed(model: str, ratios: Sequence[int], *, indexer: Indexer = "fp8", block_tokens: int = 512) -> Layout:
    """The packed layout of a model whose layer i compresses `ratios[i]` tokens into an entry: 0 (none), 4 or 128."""
    return Layout(
        version=1,
        model=model,
        chained=True,
        block_tokens=block_tokens,
        layers=len(ratios),
        replay_tokens=replay_tokens(WINDOW_TOKENS, len(ratios), overlap_tokens=CSA_RATIO),
        streams=tuple(hybrid_streams(ratios, PackedRows(INDEXER_KEY_BYTES[indexer]))),
        identity={
            "format": f"packed-{ENTRY_BYTES}-{indexer}",
            "ratios": ",".join(map(str, ratios)),
            "window": str(WINDOW_TOKENS),
            "forward_tokens": str(block_tokens),
        },
    )


def replay_tokens(window_tokens: int, layers: int, *, overlap_tokens: int) -> int:
    """The shortest replay that rebuilds every layer's state (docs/evidence.md).

    Each layer is true n_win − 1 tokens after the one below it; the last has to fill its window, and its overlap rows,
    of which a CSA layer keeps as many as its ratio. Where no ratio exceeds n_win, that is n_win · L − (L − 1).
    """
    return max(window_tokens, overlap_tokens) + (layers - 1) * (window_tokens - 1)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of the deployed packed formats."""

    indexer_key_bytes: int

    def streams(self, layer: int, ratio: int) -> Iterable[Stream]:
        if ratio == CSA_RATIO:
            yield _history("csa", layer, ratio, ENTRY_BYTES)
            yield _history("csa_index", layer, ratio, self.indexer_key_bytes)
            for name, dim in (("csa_overlap", HEAD_DIM), ("csa_index_overlap", INDEXER_DIM)):
                for part in ("kv", "gate"):
                    yield CarryStream(
                        kind="carry", name=f"{name}_{part}", layer=layer, rows=ratio, row_shape=(dim,), dtype="float32"
                    )
        elif ratio == HCA_RATIO:
            yield _history("hca", layer, ratio, ENTRY_BYTES)
        elif ratio:
            raise LayoutError(
                "ratios", f"layer {layer} compresses by {ratio}; known are 0, {CSA_RATIO} and {HCA_RATIO}"
            )
        yield WindowStream(
            kind="window", name="window", layer=layer, rows=WINDOW_TOKENS, row_shape=(ENTRY_BYTES,), dtype="uint8"
        )


def hybrid_streams(ratios: Sequence[int], rows: PackedRows) -> list[Stream]:
    """The streams of a hybrid model: history first, then windows, then carries, each by layer."""
    found = [stream for layer, ratio in enumerate(ratios) for stream in rows.streams(layer, ratio)]
    order = {"history": 0, "window": 1, "carry": 2}
    return sorted(found, key=lambda stream: order[stream.kind])


def _history(name: str, layer: int, ratio: int, row_bytes: int) -> HistoryStream:
    return HistoryStream(
        kind="history", name=name, layer=layer, tokens_per_row=ratio, row_shape=(row_bytes,), dtype="uint8"
    )
