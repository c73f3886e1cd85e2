"""Replay: rebuild the state at the hit by running the last tokens again, without making their entries again.

The layers here read the stored entries and never overwrite them: an entry made again near the replay's start would
come from rows that are not true yet, and differ. (docs/evidence.md; checked in tests/client/test_proof.py.)
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache, DeepseekV4HCACache

from kvcairn_client.assemble import History, put_window
from kvcairn_client.cache_rows import dtype_named
from kvcairn_client.model_layout import ModelCache


class _ReadsStored:
    """What both kinds of layer do instead of appending: reveal the next stored entries."""

    stored: dict[str, torch.Tensor]
    compressed_kv: dict[str, torch.Tensor | None]
    entry_count: dict[str, int]

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """As many stored entries as a run without a replay would hold now, [1, entries, dim]."""
        return self.reveal(name, self.entry_count[name] + compressed.shape[1])

    def reveal(self, name: str, entries: int) -> torch.Tensor:
        self.entry_count[name] = entries
        shown = self.compressed_kv[name] = self.stored[name][:, :entries]
        return shown


class ReplayHCALayer(_ReadsStored, DeepseekV4HCACache):  # type: ignore[no-untyped-call]
    """An HCA layer over stored entries."""

    # A subclass that names a layer type takes its place in every new DynamicCache of the process.
    _layer_type = None  # type: ignore[assignment]


class ReplayCSALayer(_ReadsStored, DeepseekV4CSACache):  # type: ignore[no-untyped-call]
    """A CSA layer over stored entries, the indexer's keys included."""

    _layer_type = None  # type: ignore[assignment]


REPLAY_LAYERS: dict[type, type] = {DeepseekV4HCACache: ReplayHCALayer, DeepseekV4CSACache: ReplayCSALayer}


def replay_cache(model_cache: ModelCache, history: History, *, start: int) -> DynamicCache:
    """A cache at `start` whose entries are the stored ones, and whose windows hold zeros that the replay washes out.

    history: the entries up to the hit; they are read, not copied.
    """
    cache = DynamicCache(config=model_cache.config)
    pairs = zip(cache.layers, history, strict=True)
    cache.layers = [_replay_layer(model_cache, plain, entries, start=start) for plain, entries in pairs]
    for stream in model_cache.layout.windows:
        zeros = torch.zeros(
            (min(stream.rows, start), *stream.row_shape),
            dtype=dtype_named(stream.dtype),
            device=model_cache.devices[stream.layer],
        )
        put_window(cache.layers[stream.layer], zeros, position=start)
    return cache


def _replay_layer(model_cache: ModelCache, plain: Any, entries: dict[str, torch.Tensor], *, start: int) -> Any:
    if type(plain) not in REPLAY_LAYERS:
        return plain
    layer = REPLAY_LAYERS[type(plain)](model_cache.config)
    layer.stored = entries
    for name in entries:
        layer.reveal(name, start // layer.compress_rate)
    return layer


def plain_layers(model_cache: ModelCache, layers: Sequence[Any]) -> list[Any]:
    """The model's own layers holding what the replay's layers hold; from here on entries are appended again."""
    plain = DynamicCache(config=model_cache.config).layers
    for target, source in zip(plain, layers, strict=True):
        held = {name: value for name, value in vars(source).items() if name != "stored"}
        vars(target).update(held)
    return list(plain)
