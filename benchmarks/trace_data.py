"""An hour of real requests: prompts as chains of block ids, read from benchmarks/data (its README says whence)."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from kvcairn_protocol.layout import Layout
from kvcairn_protocol.prefix import block_keys

DATA = Path(__file__).parent / "data" / "mooncake_conversation_trace.jsonl.gz"
BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. seconds: since the trace began. tokens: of the prompt.

    block_ids: one for each complete block, in order. Equal ids stand for equal prefixes, not for equal blocks alone.
    """

    seconds: float
    tokens: int
    block_ids: tuple[int, ...]


class _Line(BaseModel):
    """timestamp: milliseconds. hash_ids: one a block of 512 tokens, the last of which is mostly incomplete."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path = DATA, *, at_most: int | None = None) -> list[Prompt]:
    """The prompts in the order of their arrival, all or the first `at_most`."""
    with gzip.open(path, "rt") as lines:
        return [_prompt(_Line.model_validate_json(line)) for line in islice(lines, at_most)]


def _prompt(line: _Line) -> Prompt:
    complete = line.input_length // BLOCK_TOKENS
    return Prompt(line.timestamp / 1e3, line.input_length, tuple(line.hash_ids[:complete]))


def distinct_blocks(prompts: Sequence[Prompt]) -> int:
    """How many blocks a cache without bounds would keep in the end."""
    return len({block for prompt in prompts for block in prompt.block_ids})


def key_chains(layout: Layout, prompts: Sequence[Prompt]) -> Iterator[list[bytes]]:
    """Each prompt's prefix keys, by the function that clients use, from tokens that stand for the trace's ids.

    ValueError where one id would have two keys: such ids would not name prefixes.
    """
    known: dict[int, bytes] = {}
    for prompt in prompts:
        tokens = np.repeat(np.array(prompt.block_ids, dtype=np.uint32), layout.block_tokens)
        for block, key in zip(prompt.block_ids, block_keys(layout, tokens), strict=True):
            if known.setdefault(block, key) != key:
                raise ValueError(f"block {block} follows other blocks at {prompt.seconds} s than before")
        yield [known[block] for block in prompt.block_ids]
