"""What makes two models' caches interchangeable: the weights' identity, and everything else that changes the bits."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
import transformers

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


def weights_identity(model: Any, model_id: str | None) -> str:
    """The given id, else the hub's name and commit where the config still knows it, else a SHA-256 of the weights.

    A path or a name alone is no identity: what stands there can change. (transformers 5.24 no longer keeps the commit
    in a loaded config; give `model_id` to skip the hash, which reads every parameter once.)
    """
    if model_id:
        return model_id
    commit, name = getattr(model.config, "_commit_hash", None), model.config.name_or_path
    if commit and name:
        return f"{name}@{commit}"
    return f"sha256:{weights_digest(all_tensors(model))}"


def weights_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in order, as hex."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        data = tensor.detach().reshape(-1).contiguous().view(torch.uint8).cpu()
        digest.update(data.numpy().data)
    return digest.hexdigest()


def all_tensors(model: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """Every parameter and buffer, by name; buffers count, since routing tables and RoPE frequencies are among them."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def model_identity(model: Any, *, block_tokens: int) -> dict[str, str]:
    """Everything besides the weights that changes a cache's bits, as the strings of `Layout.identity`.

    Library versions, device and processor features are in it, since kernels round differently: byte-identity is
    promised for the same build on the same kind of hardware, and for nothing wider. The number of CPU threads is not:
    it changed no bit where it was tried. Raises nothing.
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
        "attention": str(config._attn_implementation),
        "experts": str(config._experts_implementation),
        "config": hashlib.sha256(_canonical(_fields_with_effect(config)).encode()).hexdigest(),
        "adapter": _adapter(model),
        "forward_tokens": str(block_tokens),
        "matmul": _matmul_precision(),
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


def _adapter(model: Any) -> str:
    """The active adapters with a hash of their weights; they count even where `model_id` names the base weights."""
    names = _active_adapters(model)
    if not names:
        return "none"
    tensors = [(name, tensor) for name, tensor in all_tensors(model) if set(name.split(".")) & set(names)]
    settings = _canonical({name: str(model.peft_config[name]) for name in names})
    digest = hashlib.sha256(f"{settings}\n{weights_digest(tensors)}".encode()).hexdigest()
    return f"{','.join(names)} sha256:{digest}"


def _active_adapters(model: Any) -> list[str]:
    """Sorted names; transformers has them as a method, peft as a property, and a model without adapters as neither."""
    if not getattr(model, "peft_config", None):
        return []
    active = model.active_adapters
    return sorted(active() if callable(active) else active)


def _matmul_precision() -> str:
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    return f"{torch.get_float32_matmul_precision()},{'reduced' if reduced else 'full'}"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
