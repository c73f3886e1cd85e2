"""From the pools to a live transformers cache: bytes become the tensors of its layers, copied once."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from kvcairn_client.cache_rows import OVERLAP_PLACES, PENDING_PLACES, PLACES, WINDOW
from kvcairn_client.model_layout import ModelCache
from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_protocol.layout import Kind, Segment
from kvcairn_protocol.mac import MAC_STREAM

History = list[dict[str, torch.Tensor]]
"""Compressed entries by layer and compressor, [1, entries, dim] each."""


def gather_history(model_cache: ModelCache, pool: BlockPool, blocks: Sequence[int], *, tokens: int) -> History:
    """The entries of the first `tokens` tokens, from held blocks in order; new tensors throughout."""
    history: History = [{} for _ in model_cache.devices]
    for segment in model_cache.layout.segments(Kind.HISTORY):
        stream = segment.stream
        if stream.name == MAC_STREAM:
            continue
        rows = pool.rows(blocks, segment, device=model_cache.devices[stream.layer])
        entries = tokens // (model_cache.layout.block_tokens // segment.rows)
        history[stream.layer][PLACES[stream.name].compressor] = rows[None, :entries]
    return history


def put_history(layers: Sequence[Any], history: History) -> None:
    """Give layers their compressed entries, and the counts that go with them."""
    for layer, entries in zip(layers, history, strict=True):
        for compressor, tensor in entries.items():
            layer.compressed_kv[compressor] = tensor
            layer.entry_count[compressor] = tensor.shape[1]


def put_state(model_cache: ModelCache, layers: Sequence[Any], states: StatePool, slot: int, *, position: int) -> None:
    """Give layers the state of a held slot: what an uninterrupted run holds after `position` tokens."""
    for segment in model_cache.slot_layout.segments(Kind.STATE):
        layer = layers[segment.stream.layer]
        rows = states.rows(slot, segment, device=model_cache.devices[segment.stream.layer])
        if segment.stream.name == WINDOW:
            put_window(layer, rows[max(0, segment.rows - position) :], position=position)
        else:
            _put_carry(layer, segment, rows, position=position)


def put_window(layer: Any, rows: torch.Tensor, *, position: int) -> None:
    """Give a layer its sliding window, [rows, dim]: keys and values are one tensor, as in the model's own layers."""
    window = rows[None, None]
    layer.lazy_initialization(window, window)
    layer.keys = layer.values = window
    layer.cumulative_length = position


def _put_carry(layer: Any, segment: Segment, rows: torch.Tensor, *, position: int) -> None:
    name = segment.stream.name
    if name in OVERLAP_PLACES and position >= layer.compress_rate:
        place = OVERLAP_PLACES[name]
        getattr(layer, place.attribute)[place.compressor] = rows[None]
    elif name in PENDING_PLACES:
        place = PENDING_PLACES[name]
        getattr(layer, place.attribute)[place.compressor] = rows[None, : position % layer.compress_rate]


def assemble(
    model_cache: ModelCache, pool: BlockPool, blocks: Sequence[int], states: StatePool, slot: int, *, position: int
) -> DynamicCache:
    """A cache as an uninterrupted run holds it after `position` > 0 tokens, from held blocks and a held slot."""
    cache = DynamicCache(config=model_cache.config)
    put_history(cache.layers, gather_history(model_cache, pool, blocks, tokens=position))
    put_state(model_cache, cache.layers, states, slot, position=position)
    return cache
