"""What a prefill gives back: the cache, the last call's logits, and where the tokens came from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from kvcairn_client.restore import Restored


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where a prompt's tokens came from. All in tokens of the prompt unless the name says otherwise.

    hit_tokens: the usable stored run, also where replaying it starts at 0. loaded_tokens: whose history was loaded.
    pooled_tokens: how many of those were in this process's pool. replayed_tokens: inside the hit, run again.
    computed_tokens: beyond the hit. state_tokens: the position of the state that was loaded, None without one.
    bytes_received, bytes_offered: over the network, and handed to the store queue. forged_records: misses because of a
    wrong MAC (mac_keys.py).
    restore_seconds: until the first forward call. compute_seconds: the forward calls and capturing. seconds: both.
    """

    prompt_tokens: int
    hit_tokens: int
    loaded_tokens: int
    pooled_tokens: int
    replayed_tokens: int
    computed_tokens: int
    state_tokens: int | None
    bytes_received: int
    bytes_offered: int
    restore_seconds: float
    compute_seconds: float
    forged_records: int = 0

    @property
    def seconds(self) -> float:
        return self.restore_seconds + self.compute_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """A prefilled prompt.

    cache: the model's own kind of cache, for `model.generate(..., cache=result.cache)`; it shares no memory with the
    pools. logits: [1, rows, vocabulary], every row of the last forward call. block_keys: of the complete blocks, as far
    as they were computed under the settings that the keys stand for.
    """

    cache: DynamicCache
    logits: torch.Tensor
    report: Report
    block_keys: Sequence[bytes]


def report_of(
    restored: Restored, *, block_tokens: int, bytes_offered: int, restore_seconds: float, compute_seconds: float
) -> Report:
    """The report of a run that started from `restored`."""
    plan = restored.plan
    return Report(
        prompt_tokens=plan.prompt_tokens,
        hit_tokens=plan.hit_tokens,
        loaded_tokens=plan.load_tokens,
        pooled_tokens=max(0, plan.load_tokens - restored.loaded.fetched_blocks * block_tokens),
        replayed_tokens=plan.replayed_tokens,
        computed_tokens=plan.computed_tokens,
        state_tokens=plan.state_tokens,
        bytes_received=restored.loaded.bytes_received,
        bytes_offered=bytes_offered,
        restore_seconds=restore_seconds,
        compute_seconds=compute_seconds,
        forged_records=restored.loaded.forged_records,
    )
