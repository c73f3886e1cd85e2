"""Small DeepSeek-V4 models with random weights, and the uninterrupted run that every restore is compared with.

The oracle is a plain loop over the model with transformers' own cache; it shares no code with kvcairn.
"""

import copy
from functools import lru_cache
from typing import Any

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

# The bits depend on the number of threads, which is part of every key; one is also the fastest for models this small.
torch.set_num_threads(1)

VOCABULARY = 512
RATIOS = (0, 0, 4, 128, 4, 128)


def make_config(ratios: tuple[int, ...] = RATIOS, **changes: Any) -> DeepseekV4Config:
    """Sizes as small as every part allows: two residual streams, a router that chooses, an indexer that drops."""
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "moe_intermediate_size": 16, "num_attention_heads": 2,
        "head_dim": 16, "q_lora_rank": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "max_position_embeddings": 8192, "hc_mult": 2, "hc_sinkhorn_iters": 4, "o_groups": 2, "o_lora_rank": 8,
        "index_n_heads": 2, "index_head_dim": 8, "index_topk": 64, "sliding_window": 128,
        "partial_rotary_factor": 0.25,
    }  # fmt: skip
    return DeepseekV4Config(compress_ratios=list(ratios), num_hidden_layers=len(ratios), **{**sizes, **changes})


@lru_cache(maxsize=8)
def make_model(ratios: tuple[int, ...] = RATIOS, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Any:
    """The same weights in every process: the seed fixes them. Shared between tests, so never change one."""
    torch.manual_seed(seed)
    return DeepseekV4ForCausalLM(make_config(ratios)).to(dtype).eval()


def make_prompt(tokens: int, *, seed: int = 1) -> torch.Tensor:
    """Random token ids, [1, tokens]; a longer prompt of the same seed begins with the shorter one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (1, 16384), generator=generator)[:, :tokens]


def feed(model: Any, ids: torch.Tensor, cache: DynamicCache, *, start: int, step: int) -> torch.Tensor:
    """Run ids[start:] in calls of `step` tokens; returns the last call's logits."""
    logits = None
    with torch.no_grad():
        for begin in range(start, ids.shape[1], step):
            end = min(ids.shape[1], begin + step)
            places = torch.arange(begin, end)[None]
            logits = model(input_ids=ids[:, begin:end], cache=cache, use_cache=True, position_ids=places).logits
    return logits


def uninterrupted(model: Any, ids: torch.Tensor, *, step: int) -> tuple[DynamicCache, torch.Tensor]:
    """A run from position 0 in one go: its cache, and the logits of its last call."""
    cache = DynamicCache(config=model.config)
    return cache, feed(model, ids, cache, start=0, step=step)


class Oracle:
    """Uninterrupted block-wise runs of one model over prompts that share tokens; every block is computed once.

    A run is continued from a copy of itself at a block's end, which is the run itself up to there; that this changes
    nothing is checked in test_proof.py.
    """

    def __init__(self, model: Any, *, step: int) -> None:
        self._model, self._step = model, step
        self._at: dict[bytes, DynamicCache] = {b"": DynamicCache(config=model.config)}

    def run(self, ids: torch.Tensor) -> tuple[DynamicCache, torch.Tensor]:
        """The cache after `ids`, the caller's own, and the logits of the last call."""
        last = (ids.shape[1] - 1) // self._step * self._step
        cache = copy.deepcopy(self._after(ids[:, :last]))
        return cache, feed(self._model, ids, cache, start=last, step=self._step)

    def _after(self, ids: torch.Tensor) -> DynamicCache:
        """The cache after whole blocks."""
        name = ids.numpy().tobytes()
        if name not in self._at:
            cache = copy.deepcopy(self._after(ids[:, : -self._step]))
            feed(self._model, ids, cache, start=ids.shape[1] - self._step, step=self._step)
            self._at[name] = cache
        return self._at[name]


def differences(found: DynamicCache, right: DynamicCache) -> list[str]:
    """Where two caches differ: layer types, every attribute of every layer, tensors by dtype, shape and every bit."""
    if len(found.layers) != len(right.layers):
        return [f"{len(found.layers)} layers instead of {len(right.layers)}"]
    unequal = []
    for index, (one, other) in enumerate(zip(found.layers, right.layers, strict=True)):
        if type(one) is not type(other):
            unequal.append(f"layer {index}: {type(one).__name__} instead of {type(other).__name__}")
        names = sorted(vars(one).keys() | vars(other).keys())
        changed = [name for name in names if not _same(vars(one).get(name, "absent"), vars(other).get(name, "absent"))]
        unequal += [f"layer {index}: {name}" for name in changed]
    return unequal


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return same_bits(one, other)
    return type(one) is type(other) and bool(one == other)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit (0.0 and -0.0 differ, a NaN equals itself)."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))))
