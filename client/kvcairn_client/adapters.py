"""Adapters (LoRA and its like) of a loaded model: which are in effect, and with which weights.

Source: transformers 5.24, integrations/peft.py (active_adapters names adapters that disable_adapters turned off), and
peft's tuner layers: disable_adapters, active_adapters, merged_adapters and scaling.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from kvcairn_client.weights import all_tensors, weights_digest


def adapter_identity(model: Any) -> str:
    """The adapters in effect with a hash of their weights; they count even where a given id names the base weights."""
    names = _in_effect(model)
    if not names:
        return "none"
    tensors = [(name, tensor) for name, tensor in all_tensors(model) if set(name.split(".")) & set(names)]
    configs = json.dumps({name: str(model.peft_config.get(name)) for name in names}, sort_keys=True)
    digest = hashlib.sha256(f"{configs}\n{weights_digest(tensors)}".encode()).hexdigest()
    return f"{','.join(names)} sha256:{digest}"


def adapter_switches(model: Any) -> str:
    """How the layers are told to use their adapters now, as a hash; "none" where no adapter is in effect.

    A caller switches and scales them between two calls. Reads no weights.
    """
    if not _in_effect(model):
        return "none"
    switches = {
        name: (layer.disable_adapters, _names(layer), _merged(layer), getattr(layer, "scaling", None))
        for name, layer in _tuner_layers(model)
    }
    return f"sha256:{hashlib.sha256(json.dumps(switches, sort_keys=True, default=str).encode()).hexdigest()}"


def _in_effect(model: Any) -> list[str]:
    """Sorted names: of what layers use or have merged into their weights; of the model's active ones without layers."""
    if not getattr(model, "peft_config", None):
        return []
    layers = [layer for _, layer in _tuner_layers(model)]
    if not layers:
        return _names(model)
    used = {name for layer in layers if not layer.disable_adapters for name in _names(layer)}
    return sorted(used.union(*map(_merged, layers)))


def _tuner_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Modules with a switch; a model has a method of the same name."""
    for name, module in model.named_modules():
        if isinstance(getattr(module, "disable_adapters", None), bool):
            yield name, module


def _names(owner: Any) -> list[str]:
    """The active ones. transformers has them as a method, peft as a property, older layers as one name or a list."""
    active = getattr(owner, "active_adapters", None) or getattr(owner, "active_adapter", [])
    active = active() if callable(active) else active
    return [active] if isinstance(active, str) else sorted(active)


def _merged(layer: Any) -> list[str]:
    return list(getattr(layer, "merged_adapters", []))
