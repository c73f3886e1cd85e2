"""Restore: keys → what the pools and the service have → plan → bytes in the pools; then again with what is left.

The plan is pure (kvcairn_protocol.plan); this is the thin part that acts on it. The service may evict, lose or corrupt
anything between two calls: each costs a shorter hit, a replay, or at worst an ordinary prefill.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvcairn_client.loading import Fetches, Loader, Shortfall
from kvcairn_client.records import Lookup
from kvcairn_client.sessions import Pools
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.plan import RestorePlan, plan_restore, usable_tokens

MAX_ROUNDS = 4
"""Plans tried against the service; then what was loaded so far has to do."""

NOTHING_KNOWN = Lookup(answered=False)


class Source(Fetches, Protocol):
    """What a restore asks of a service; never raises for a fault of it (FailOpen does not)."""

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore brought into the pools; `loaded` holds its rows until it is released.

    The plan's history is in the first rows of `loaded.blocks`, and its state in `loaded.slot`. found: the service's
    answer, less what turned out missing. was_asked: whether there was one to be had; False where the pools sufficed.
    """

    plan: RestorePlan
    loaded: Loader
    found: Lookup
    was_asked: bool


def restore(pools: Pools, source: Source | None, keys: Sequence[bytes], *, prompt_tokens: int) -> Restored:
    """Bring as much of a prompt into the pools as can be had, in a bounded number of calls.

    keys: of the prompt's complete blocks. A prompt that the pools serve whole asks nobody.
    """
    layout = pools.model_cache.layout
    loader = Loader(pools, keys, usable_blocks=usable_tokens(layout, prompt_tokens) // layout.block_tokens)
    try:
        return _Attempt(pools, loader, keys, prompt_tokens=prompt_tokens).run(source)
    except BaseException:
        loader.release()
        raise


class _Attempt:
    """One prompt's restore: what is believed to be there, and what the loader holds of it."""

    def __init__(self, pools: Pools, loader: Loader, keys: Sequence[bytes], *, prompt_tokens: int) -> None:
        self.pools, self.loader, self.keys, self.prompt_tokens = pools, loader, keys, prompt_tokens
        self.layout = pools.model_cache.layout
        self.found = NOTHING_KNOWN
        self.blocks = len(loader.blocks)
        self.states = set(pools.states.positions(keys))

    def run(self, source: Source | None) -> Restored:
        was_asked = source is not None and not self._is_served_here()
        if source is not None and was_asked:
            self.found = source.lookup(self.layout, self.keys)
            self.blocks = max(self.blocks, self.found.history_blocks)
            self.states |= set(self.found.state_tokens)
        plan = self._try(source) or self._settle()
        return Restored(plan=plan, loaded=self.loader, found=self.found, was_asked=was_asked)

    def _is_served_here(self) -> bool:
        """Whether the pools have every complete block, and a state at the usable hit."""
        plan = self._plan(self.blocks, self.states)
        usable = usable_tokens(self.layout, self.prompt_tokens)
        return plan.hit_tokens == plan.start_tokens == usable and all(key in self.pools.blocks for key in self.keys)

    def _try(self, source: Source | None) -> RestorePlan | None:
        """Plan and load, a few times; None if the service never had what it had said."""
        for _ in range(MAX_ROUNDS):
            plan = self._plan(self.blocks, self.states)
            shortfall = self._load(source, plan)
            if shortfall is None:
                return plan
            self._believe_less(plan, shortfall)
            if self.loader.has_fault:
                break
        return None

    def _settle(self) -> RestorePlan:
        """A plan for what is here by now. It ends: each failure takes one of the states away."""
        while True:
            here = [position for position in self.states if self._key_at(position) in self.pools.states]
            plan = self._plan(len(self.loader.blocks), here)
            if self._load(None, plan) is None:
                return plan
            self.states.discard(plan.state_tokens or 0)

    def _load(self, source: Source | None, plan: RestorePlan) -> Shortfall | None:
        blocks = plan.load_tokens // self.layout.block_tokens
        return self.loader.load(source, blocks=blocks, state_tokens=plan.state_tokens)

    def _plan(self, blocks: int, states: Iterable[int]) -> RestorePlan:
        return plan_restore(
            self.layout, prompt_tokens=self.prompt_tokens, history_blocks=blocks, state_tokens=set(states)
        )

    def _believe_less(self, plan: RestorePlan, shortfall: Shortfall) -> None:
        """What did not come is not there; unless the transfer was cut, it will be offered to the service again."""
        blocks, states = self.found.history_blocks, self.found.state_tokens
        if shortfall.first_missing is not None:
            self.blocks = min(self.blocks, shortfall.first_missing)
            blocks = min(blocks, shortfall.first_missing)
        if shortfall.is_state_missing:
            self.states.discard(plan.state_tokens or 0)
            states = tuple(position for position in states if position != plan.state_tokens)
        if not self.loader.has_fault:
            self.found = replace(self.found, history_blocks=blocks, state_tokens=states)

    def _key_at(self, position: int) -> bytes:
        return self.keys[position // self.layout.block_tokens - 1]
