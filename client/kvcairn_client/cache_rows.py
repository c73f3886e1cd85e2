"""Where each stream of a layout lives in a transformers DeepSeek-V4 cache, and what its rows are.

Source: transformers 5.24, models/deepseek_v4 (DeepseekV4HCACache, DeepseekV4CSACache) and cache_utils
(DynamicSlidingWindowLayer). Rows have the shape [rows, *row_shape]: the batch dimension of one is left out.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from kvcairn_client.errors import ModelNotSupported
from kvcairn_protocol.layout import CarryStream, HistoryStream, Segment, WindowStream
from kvcairn_protocol.mac import MAC_STREAM

WINDOW = "window"


class Place(NamedTuple):
    """A tensor of a cache layer: the attribute that holds a dict, and the compressor's name in that dict."""

    attribute: str
    compressor: str


HISTORY_PLACES = {
    "csa": Place("compressed_kv", "compressor"),
    "csa_index": Place("compressed_kv", "indexer"),
    "hca": Place("compressed_kv", "compressor"),
}

OVERLAP_PLACES = {
    "csa_overlap_kv": Place("overlap_kv", "compressor"),
    "csa_overlap_gate": Place("overlap_gate", "compressor"),
    "csa_index_overlap_kv": Place("overlap_kv", "indexer"),
    "csa_index_overlap_gate": Place("overlap_gate", "indexer"),
}

PENDING_PLACES = {
    "csa_pending_kv": Place("buffer_kv", "compressor"),
    "csa_pending_gate": Place("buffer_gate", "compressor"),
    "csa_index_pending_kv": Place("buffer_kv", "indexer"),
    "csa_index_pending_gate": Place("buffer_gate", "indexer"),
    "hca_pending_kv": Place("buffer_kv", "compressor"),
    "hca_pending_gate": Place("buffer_gate", "compressor"),
}
"""Tokens that are not compressed yet. None wait at a unit's end, so no layout stores them; a slot in memory does."""

PLACES = {**HISTORY_PLACES, **OVERLAP_PLACES, **PENDING_PLACES}

Stream = HistoryStream | WindowStream | CarryStream


def rows_of(layer: Any, stream: Stream) -> torch.Tensor | None:
    """The rows that a cache layer holds of a stream, [rows, *row_shape]; None where it never held any. A view.

    No layer holds a MAC: its bytes are zeros here, and made where the record leaves this process (outgoing.py).

    ModelNotSupported if they are not of the stream's dtype: as bytes they would be read as other numbers.
    """
    rows = _rows_at(layer, stream)
    if rows is not None and rows.dtype != dtype_named(stream.dtype):
        raise ModelNotSupported(
            f"layer {stream.layer} holds {stream.name} rows of {rows.dtype}, the layout has {stream.dtype}: "
            "was this cache made under autocast, or by another model?"
        )
    return rows


def _rows_at(layer: Any, stream: Stream) -> torch.Tensor | None:
    if stream.name == MAC_STREAM:
        return None
    if stream.name == WINDOW:
        return layer.keys[0, 0] if layer.is_initialized else None
    place = PLACES[stream.name]
    tensor = getattr(layer, place.attribute)[place.compressor]
    return None if tensor is None else tensor[0]


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of a layout's dtype name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)  # noqa: S101 - layouts name only dtypes that torch has
    return dtype


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The same items as a flat uint8 tensor on the host; a view where they lie there contiguously."""
    return rows.contiguous().view(torch.uint8).reshape(-1).cpu()


def as_rows(data: torch.Tensor, segment: Segment) -> torch.Tensor:
    """A fresh, contiguous uint8 tensor holding whole segments, read as rows of the segment's stream; a view.

    data must own its memory from offset 0: a view into a payload may start at an offset that its dtype does not divide.
    """
    stream = segment.stream
    return data.reshape(-1).view(dtype_named(stream.dtype)).reshape(-1, *stream.row_shape)


def history_payload(segments: Iterable[Segment], layers: Sequence[Any], tokens: range) -> torch.Tensor:
    """The history record of one block: the compressed entries of `tokens`, whose ends are multiples of every ratio.

    Returns a new uint8 tensor on the host.
    """
    parts = []
    for segment in segments:
        stream = segment.stream
        assert isinstance(stream, HistoryStream)  # noqa: S101 - segments of Kind.HISTORY
        rows = rows_of(layers[stream.layer], stream)
        if rows is None:
            parts.append(torch.zeros(segment.size_bytes, dtype=torch.uint8))
            continue
        parts.append(as_bytes(rows[tokens.start // stream.tokens_per_row : tokens.stop // stream.tokens_per_row]))
    return torch.cat(parts)


def state_payload(segments: Iterable[Segment], layers: Sequence[Any], out: torch.Tensor) -> None:
    """Write the state that a cache holds now into `out`, a uint8 tensor as long as the segments.

    Window rows stand at their segment's end, zeros in front of them; all other rows at its start, zeros behind them.
    """
    for segment in segments:
        target = out[segment.offset : segment.offset + segment.size_bytes]
        rows = rows_of(layers[segment.stream.layer], segment.stream)
        data = as_bytes(rows) if rows is not None else target[:0]
        target.zero_()
        start = len(target) - len(data) if segment.stream.name == WINDOW else 0
        target[start : start + len(data)] = data
