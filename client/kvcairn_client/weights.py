"""The identity of a model's weights."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


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
