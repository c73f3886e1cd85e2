"""What caches hold, to try codecs on: the small model's, from real prefills, and the same numbers packed as FP8.

The packed rows have the sizes of the deployed format (docs/evidence.md). An entry: 448 values as float8_e4m3 in groups
of 64, 64 rotated values as bfloat16, a power of two for each group as its scale, and a spare byte, 584 in all. An
indexer key: 128 float8 values and a float32 scale. All values are a random model's; a trained one's may differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from examples.agent_prompt import system_prompt
from examples.small_model import MODEL_ID, RATIOS, SETTINGS, small_model, tokenize
from kvcairn_client.cache_rows import history_payload, rows_of
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.deepseek_v4 import flash, packed
from kvcairn_protocol.layout import Kind, Layout, Segment

Rows = npt.NDArray[np.uint8]

HEAD_DIM, INDEX_DIM, ROTATED, GROUP = 512, 128, 64, 64
FP8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class Content:
    """History payloads of one kind of cache, and where their streams lie."""

    name: str
    payloads: list[bytes]
    segments: tuple[Segment, ...]

    @property
    def raw_bytes(self) -> int:
        return sum(map(len, self.payloads))


def contents(*, tokens: int) -> list[Content]:
    """Caches of one prompt of so many tokens, a multiple of 512, and records of random bytes, full and mostly empty."""
    float32 = _of_model(small_model(), "float32 cache", tokens)
    bfloat16 = _of_model(small_model(dtype=torch.bfloat16), "bfloat16 cache", tokens)
    widened = Content("bfloat16 values kept as float32", [_widen(data) for data in bfloat16.payloads], float32.segments)
    return [float32, bfloat16, widened, _packed(tokens), *_random(len(float32.payloads))]


def _prefilled(model: Any, tokens: int) -> tuple[list[Any], Layout]:
    """The cache layers after a prefill of a long system prompt, and the layout that they have."""
    with CachedPrefill(model, None, model_id=MODEL_ID) as prefill:
        result = prefill(tokenize(system_prompt(tokens), tokens=tokens))
        return list(result.cache.layers), prefill.layout


def _of_model(model: Any, name: str, tokens: int) -> Content:
    layers, layout = _prefilled(model, tokens)
    segments = layout.segments(Kind.HISTORY)
    payloads = [history_payload(segments, layers, block).numpy().tobytes() for block in _blocks(layout, tokens)]
    return Content(name, payloads, segments)


def _blocks(layout: Layout, tokens: int) -> Iterator[range]:
    for start in range(0, tokens, layout.block_tokens):
        yield range(start, start + layout.block_tokens)


def _widen(payload: bytes) -> bytes:
    return (np.frombuffer(payload, "<u2").astype("<u4") << 16).tobytes()


def _packed(tokens: int) -> Content:
    """The cache of a model with V4-Flash's own head sizes, packed."""
    (layers, wide), layout = _prefilled(_wide_model(), tokens), packed("benchmark", RATIOS)
    rows = [_pack(rows_of(layers[stream.layer], stream)) for stream in wide.history]
    segments = layout.segments(Kind.HISTORY)
    payloads = [_cut(rows, segments, index) for index in range(tokens // layout.block_tokens)]
    return Content("packed FP8 cache", payloads, segments)


def _cut(rows: list[Rows], segments: tuple[Segment, ...], index: int) -> bytes:
    """The rows of block `index`, stream by stream."""
    return b"".join(
        each[index * segment.rows : (index + 1) * segment.rows].tobytes()
        for each, segment in zip(rows, segments, strict=True)
    )


def _pack(rows: torch.Tensor | None) -> Rows:
    """Float rows as the packed format keeps them, uint8 [rows, 584] for entries and [rows, 132] for indexer keys."""
    assert rows is not None
    if rows.shape[1] == INDEX_DIM:
        scale = rows.abs().amax(1, keepdim=True).float() / FP8_MAX
        parts = [(rows / scale).to(torch.float8_e4m3fn), scale]
    else:
        groups = rows[:, :-ROTATED].reshape(len(rows), -1, GROUP)
        exponent = (groups.abs().amax(2, keepdim=True) / FP8_MAX).log2().ceil()
        scales = torch.nn.functional.pad((exponent[..., 0] + 127).to(torch.uint8), (0, 1))
        values = (groups / exponent.exp2()).to(torch.float8_e4m3fn).reshape(len(rows), -1)
        parts = [values, rows[:, -ROTATED:].to(torch.bfloat16), scales]
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], 1).numpy()


def _random(count: int) -> list[Content]:
    """The worst case, nothing to find; and the same where three quarters of each record are zeros."""
    layout, chance = flash("benchmark"), np.random.default_rng(0)
    size_bytes = layout.payload_bytes(Kind.HISTORY)
    full = [chance.bytes(size_bytes) for _ in range(count)]
    empty = [data[: size_bytes // 4].ljust(size_bytes, b"\0") for data in full]
    segments = layout.segments(Kind.HISTORY)
    return [Content("random bytes", full, segments), Content("random bytes, 3/4 zeros", empty, segments)]


def _wide_model() -> Any:
    """The small model with V4-Flash's own head sizes."""
    torch.manual_seed(0)
    sizes = {"head_dim": HEAD_DIM, "index_head_dim": INDEX_DIM, "partial_rotary_factor": ROTATED / HEAD_DIM}
    model: Any = DeepseekV4ForCausalLM(DeepseekV4Config(**SETTINGS | sizes))
    return model.eval()
