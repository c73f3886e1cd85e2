"""The layout of a loaded transformers DeepSeek-V4 model, learned from a dry run.

Storage dtypes and dims are what the model produces, not what its config says: overlap gates can be float32 beside
bfloat16 entries.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from kvcairn_client.cache_rows import HISTORY_PLACES, OVERLAP_PLACES, PENDING_PLACES, WINDOW, Place
from kvcairn_client.errors import ModelNotSupported
from kvcairn_client.identity import model_identity
from kvcairn_client.mac_keys import NO_KEYS, MacKeys
from kvcairn_client.settings import Settings
from kvcairn_client.weights import weights_identity
from kvcairn_protocol.deepseek_v4 import replay_tokens
from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import ITEM_BYTES, CarryStream, HistoryStream, Layout, WindowStream

CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
PREFIX_OF = {CSA: "csa", HCA: "hca"}
"""How the names of the streams of a layer type start."""

# Their frequencies follow the longest position seen so far: an entry is then no function of its prefix alone.
IMPURE_ROPES = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCache:
    """A model's cache as bytes.

    layout: what is stored. slot_layout: the same with pending rows behind the carries, so that a state slot in memory
    starts with exactly a state record's payload. devices: where each layer computes. settings: those of the process
    that the layout's identity names.
    """

    config: Any
    layout: Layout
    slot_layout: Layout
    devices: tuple[torch.device, ...]
    settings: Settings

    @property
    def on_host(self) -> bool:
        """Whether every layer computes on the CPU."""
        return all(device.type == "cpu" for device in self.devices)


def layout_of(model: Any, *, model_id: str | None = None, block_tokens: int = 512) -> Layout:
    """The layout of a loaded DeepseekV4ForCausalLM; runs it once on one unit of tokens.

    ModelNotSupported for a model whose cache this package cannot store; LayoutError where block_tokens does not fit.
    """
    return describe(model, model_id=model_id, block_tokens=block_tokens).layout


def describe(
    model: Any, *, model_id: str | None = None, block_tokens: int = 512, mac_keys: MacKeys = NO_KEYS
) -> ModelCache:
    """As `layout_of`, with all that is needed to take such a cache apart and to build one.

    mac_keys: the first of them signs the records; the layout is then another one.
    """
    check_model(model)
    config, unit = model.config, unit_tokens(model.config)
    if block_tokens < unit or block_tokens % unit:
        raise LayoutError("block_tokens", f"must be a multiple of the unit ({unit} tokens); {block_tokens} is not")
    settings = Settings(model)
    layers = _dry_run(model, tokens=unit)
    kinds = list(enumerate(config.layer_types))
    history = [s for i, kind in kinds for s in _histories(layers[i], i, kind)]
    windows = [_window(layer, i, rows=config.sliding_window - 1) for i, layer in enumerate(layers)]
    overlaps = [s for i, kind in kinds for s in _carries(layers[i], i, kind, OVERLAP_PLACES)]
    pending = [s for i, kind in kinds for s in _carries(layers[i], i, kind, PENDING_PLACES)]
    fields: dict[str, Any] = {
        "version": 1,
        "model": weights_identity(model, model_id),
        "chained": True,
        "block_tokens": block_tokens,
        "layers": config.num_hidden_layers,
        "replay_tokens": replay_tokens(
            config.sliding_window, config.num_hidden_layers, overlap_tokens=_overlap_tokens(config)
        ),
        "identity": {**model_identity(model, block_tokens=block_tokens), **settings.recorded},
    }
    layout = mac_keys.authenticated(Layout(**fields, streams=(*history, *windows, *overlaps)))
    fields["identity"] = layout.identity
    return ModelCache(
        config=config,
        layout=layout,
        slot_layout=Layout(**fields, streams=(*layout.streams, *pending)),
        devices=tuple(layer.keys.device for layer in layers),
        settings=settings,
    )


def check_model(model: Any) -> None:
    """Refuse what could not be restored byte for byte; ModelNotSupported says what and why."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "deepseek_v4" or not hasattr(model, "lm_head"):
        raise ModelNotSupported(f"needs a transformers DeepseekV4ForCausalLM, not {type(model).__name__}")
    if model.training:
        raise ModelNotSupported("the model is in training mode, where its forward pass is random: call model.eval()")
    ropes = {config.rope_parameters[kind].get("rope_type", "default") for kind in ("main", "compress")}
    if ropes & IMPURE_ROPES:
        raise ModelNotSupported(
            f"RoPE of type {', '.join(sorted(ropes & IMPURE_ROPES))} depends on the longest position seen, so that no "
            "prefix has bits of its own; default and yarn have"
        )
    if not any(kind in PREFIX_OF for kind in config.layer_types):
        raise ModelNotSupported("the model has no CSA and no HCA layer, so that there is no history to store")
    if config.sliding_window < 2:
        raise ModelNotSupported(f"needs a sliding window of 2 tokens or more; this has {config.sliding_window}")


def unit_tokens(config: Any) -> int:
    """The lcm of the compression ratios in use: only at its multiples nothing is pending."""
    return math.lcm(*(config.compress_rates[kind] for kind in config.layer_types if kind in PREFIX_OF))


def _overlap_tokens(config: Any) -> int:
    """The largest CSA ratio in use: a CSA layer keeps the rows of as many tokens for its next entry."""
    return config.compress_rates[CSA] if CSA in config.layer_types else 0


def _dry_run(model: Any, *, tokens: int) -> list[Any]:
    """The cache layers after one forward call."""
    ids = torch.arange(tokens, device=model.device)[None] % model.config.vocab_size
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    return list(cache.layers)


def _histories(layer: Any, index: int, kind: str) -> Iterator[HistoryStream]:
    for name, place in _places(kind, HISTORY_PLACES):
        dim, dtype = _learned(getattr(layer, place.attribute)[place.compressor])
        yield HistoryStream(
            kind="history", name=name, layer=index, tokens_per_row=layer.compress_rate, row_shape=(dim,), dtype=dtype
        )


def _window(layer: Any, index: int, *, rows: int) -> WindowStream:
    dim, dtype = _learned(layer.keys)
    return WindowStream(kind="window", name=WINDOW, layer=index, rows=rows, row_shape=(dim,), dtype=dtype)


def _carries(layer: Any, index: int, kind: str, places: dict[str, Place]) -> Iterator[CarryStream]:
    """Overlap rows: one per token of a compressed entry. Pending rows: at most one fewer, else they were compressed."""
    for name, place in _places(kind, places):
        rows = layer.compress_rate - (1 if place in PENDING_PLACES.values() else 0)
        dim, dtype = _learned(getattr(layer, place.attribute)[place.compressor])
        if rows:
            yield CarryStream(kind="carry", name=name, layer=index, rows=rows, row_shape=(dim,), dtype=dtype)


def _places(kind: str, places: dict[str, Place]) -> list[tuple[str, Place]]:
    prefix = PREFIX_OF.get(kind)
    return [(name, place) for name, place in places.items() if prefix and name.startswith(prefix)]


def _learned(tensor: torch.Tensor) -> tuple[int, Any]:
    """The row's dim and dtype name of a tensor that the dry run left in the cache."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise ModelNotSupported(f"the model keeps {name} in its cache; a layout knows {', '.join(ITEM_BYTES)}")
    return tensor.shape[-1], name
