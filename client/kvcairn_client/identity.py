"""What makes two models' caches interchangeable beside the weights: everything else that changes the bits."""

import hashlib
import json
from typing import Any

import torch
import transformers

from kvcairn_client.adapters import adapter_identity
from kvcairn_client.weights import all_tensors

# Named in the config, but never part of an arithmetic operation of the forward pass. Whatever is not in this list is
# part of the identity: a field that a later version adds must change the keys rather than be forgotten.
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id",
        "id2label", "initializer_range", "label2id", "output_attentions", "output_hidden_states",
        "output_router_logits", "problem_type", "return_dict", "router_aux_loss_coef", "transformers_version",
        "use_cache",
    }
)  # fmt: skip


def model_identity(model: Any, *, block_tokens: int) -> dict[str, str]:
    """Everything of the model and the build that changes a cache's bits, as the strings of `Layout.identity`.

    Library versions, device and processor features are in it, since kernels round differently: byte-identity is
    promised for the same build on the same kind of hardware, and for nothing wider. What can change between two calls,
    such as the number of CPU threads, is in settings.py. Raises nothing.
    """
    config = model.config
    return {
        "format": f"transformers-{config.model_type}",
        "ratios": ",".join(str(config.compress_rates.get(kind, 0)) for kind in config.layer_types),
        "window": str(config.sliding_window),
        "head_dim": str(config.head_dim),
        "index_head_dim": str(config.index_head_dim),
        "index_n_heads": str(config.index_n_heads),
        "index_topk": str(config.index_topk),
        "rope": _canonical(config.rope_parameters),
        "rope_dim": str(config.qk_rope_head_dim),
        "dtypes": _dtypes(model),
        "config": hashlib.sha256(_canonical(_fields_with_effect(config)).encode()).hexdigest(),
        "adapter": adapter_identity(model),
        "forward_tokens": str(block_tokens),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": _device(model.device),
    }


def _fields_with_effect(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in WITHOUT_EFFECT}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)


def _dtypes(model: Any) -> str:
    """Which dtypes the weights have, and a hash of which weight has which."""
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in all_tensors(model)}
    digest = hashlib.sha256(_canonical(dtypes).encode()).hexdigest()
    return f"{','.join(sorted(set(dtypes.values())))} sha256:{digest}"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
