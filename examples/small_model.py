"""A small random-weight model on the real DeepSeek-V4 code of transformers: 6 layers, 2 each of SWA-only, CSA and HCA.

The same seed gives the same weights in every process, so that two processes stand for two servers of one fleet.
"""

import hashlib
from typing import Any

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

MODEL_ID = "kvcairn/small-random-v4@seed-0"
RATIOS = (0, 0, 4, 128, 4, 128)
VOCABULARY = 512
MAX_TOKENS = 16_384


SETTINGS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": len(RATIOS),
    "num_attention_heads": 4,
    "head_dim": 64,
    "q_lora_rank": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "max_position_embeddings": MAX_TOKENS,
    "hc_mult": 2,
    "o_groups": 2,
    "o_lora_rank": 32,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 64,
    "compress_ratios": list(RATIOS),
    "sliding_window": 128,
    "partial_rotary_factor": 0.25,
}


def small_model(*, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Build the model; takes well under a second, needs no download."""
    torch.set_num_threads(1)  # bits are promised for equal kernels; one thread makes them equal on any core count
    torch.manual_seed(seed)
    model: Any = DeepseekV4ForCausalLM(DeepseekV4Config(**SETTINGS))
    return model.to(dtype).eval()


def tokenize(text: str, *, tokens: int | None = None) -> torch.Tensor:
    """Bytes as token ids, shape [1, n]; repeated up to `tokens` where that is given. No tokenizer to download."""
    data = text.encode()
    if tokens is not None:
        data = (data * (tokens // len(data) + 1))[:tokens]
    return torch.tensor([[2 + byte for byte in data]])


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 over a tensor's bytes: equal digests mean equal bits."""
    raw = tensor.detach().contiguous().cpu().view(torch.uint8).numpy()
    return hashlib.sha256(raw.tobytes()).hexdigest()
