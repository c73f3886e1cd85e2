"""Restore: keys → what the pools and the service have → plan → bytes in the pools; then again with what is left.

The plan is pure (kvcairn_protocol.plan); this is the thin part that acts on it. The service may evict, lose or corrupt
anything between two calls: each costs a shorter hit, a replay, or at worst an ordinary prefill.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from kvcairn_client.records import FetchResult, Lookup, Wanted
from kvcairn_client.sessions import Pools
from kvcairn_client.slab import Slab
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.plan import RestorePlan, plan_restore, usable_tokens

MAX_ROUNDS = 4
"""Plans tried against the service; then what was loaded so far has to do."""

NOTHING_KNOWN = Lookup(answered=False)


class Source(Protocol):
    """What a restore asks of a service; never raises for a fault of it (FailOpen does not)."""

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup: ...

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult: ...


@dataclass(slots=True, kw_only=True)
class Restored:
    """What a restore brought into the pools; its rows are held until `release`.

    blocks: rows of the prompt's first blocks, at least `plan.load_tokens` of them, in order. slot: the state's, None
    where the plan loads none. found: the service's answer, less what turned out missing; `answered` False where it was
    not asked or did not answer. fetched_blocks: how many of the loaded blocks came over the network.
    """

    plan: RestorePlan
    blocks: list[int]
    slot: int | None
    found: Lookup
    was_asked: bool
    fetched_blocks: int
    bytes_received: int

    def release(self, pools: Pools) -> None:
        """Give the rows back to the pools, where they stay findable."""
        pools.blocks.release_run(self.blocks)
        if self.slot is not None:
            pools.states.release(self.slot)


def restore(pools: Pools, source: Source | None, keys: Sequence[bytes], *, prompt_tokens: int) -> Restored:
    """Bring as much of a prompt into the pools as can be had, in a bounded number of calls.

    keys: of the prompt's complete blocks. A prompt that the pools serve whole asks nobody.
    """
    attempt = _Attempt(pools, source, keys, prompt_tokens=prompt_tokens)
    try:
        return attempt.run()
    except BaseException:
        attempt.release()
        raise


class _Row(NamedTuple):
    """A held row for a block, or for the state at its end; is_here: it has its content already."""

    row: int
    block: int
    is_here: bool = False


class _Attempt:
    """One prompt's restore: what is held by now, and what is still believed to be there."""

    def __init__(self, pools: Pools, source: Source | None, keys: Sequence[bytes], *, prompt_tokens: int) -> None:
        self.pools, self.source, self.keys, self.prompt_tokens = pools, source, keys, prompt_tokens
        self.layout = pools.model_cache.layout
        self.step = self.layout.block_tokens
        self.held = pools.blocks.acquire_run(keys[: usable_tokens(self.layout, prompt_tokens) // self.step])
        self.states = set(pools.states.positions(keys))
        self.found = NOTHING_KNOWN
        self.blocks = len(self.held)
        self.slot: int | None = None
        self.fetched_blocks = self.bytes_received = 0
        self.has_fault = False

    def run(self) -> Restored:
        was_asked = self.source is not None and not self._is_served_here()
        if was_asked:
            self._ask()
        plan = self._plan(self.blocks, self.states)
        for _ in range(MAX_ROUNDS):
            if self._load(plan):
                return self._restored(plan, was_asked=was_asked)
            plan = self._plan(self.blocks, self.states)
            if self.has_fault:
                break
        self.source = None
        plan = self._plan(len(self.held), self._states_here())
        while not self._load(plan):
            plan = self._plan(len(self.held), self._states_here())
        return self._restored(plan, was_asked=was_asked)

    def release(self) -> None:
        self.pools.blocks.release_run(self.held)
        if self.slot is not None:
            self.pools.states.release(self.slot)

    def _is_served_here(self) -> bool:
        """Whether the pools have every complete block, and a state at the usable hit."""
        plan = self._plan(self.blocks, self.states)
        usable = usable_tokens(self.layout, self.prompt_tokens)
        return plan.hit_tokens == plan.start_tokens == usable and all(key in self.pools.blocks for key in self.keys)

    def _ask(self) -> None:
        assert self.source is not None  # noqa: S101 - asked only where there is one
        self.found = self.source.lookup(self.layout, self.keys)
        self.blocks = max(self.blocks, self.found.history_blocks)
        self.states |= set(self.found.state_tokens)

    def _plan(self, blocks: int, states: Iterable[int]) -> RestorePlan:
        return plan_restore(
            self.layout, prompt_tokens=self.prompt_tokens, history_blocks=blocks, state_tokens=set(states)
        )

    def _states_here(self) -> list[int]:
        return [position for position in self.states if self.keys[position // self.step - 1] in self.pools.states]

    def _load(self, plan: RestorePlan) -> bool:
        """Hold what the plan needs, fetching what is not here; False if it fell short: less is believed then."""
        first, needed = len(self.held), plan.load_tokens // self.step
        blocks = self._block_rows(range(first, needed))
        state = self._slot_row(plan.state_tokens)
        try:
            fetched = self._fetch(self._wanted(blocks, state))
        except BaseException:
            self._give_back(blocks, state)
            raise
        self._keep_blocks(blocks, fetched)
        self._keep_state(state, fetched)
        if len(self.held) < needed:
            self.blocks = min(self.blocks, len(self.held))
        is_whole = len(self.held) >= needed and (self.slot is None) == (plan.state_tokens is None)
        if not is_whole:
            self._forget_state(plan.state_tokens)
        return is_whole

    def _block_rows(self, indices: range) -> list[_Row]:
        """A held row for each block: with its content, or to write; ends early where the pool has no room."""
        here = [self.pools.blocks.acquire(self.keys[index]) for index in indices]
        rows = []
        for index, row in zip(indices, here, strict=True):
            found = _Row(row, index, is_here=True) if row is not None else self._to_write(self.pools.blocks, index)
            if found is None:
                self.pools.blocks.release_run([row for row in here[index - indices.start :] if row is not None])
                break
            rows.append(found)
        return rows

    def _slot_row(self, position: int | None) -> _Row | None:
        if position is None:
            return None
        index = position // self.step - 1
        row = self.pools.states.acquire(self.keys[index])
        return _Row(row, index, is_here=True) if row is not None else self._to_write(self.pools.states, index)

    def _to_write(self, pool: Slab, index: int) -> _Row | None:
        row = pool.take() if self.source is not None else None
        return None if row is None else _Row(row, index)

    def _give_back(self, blocks: list[_Row], state: _Row | None) -> None:
        self.pools.blocks.release_run([block.row for block in blocks])
        if state is not None:
            self.pools.states.release(state.row)

    def _wanted(self, blocks: list[_Row], state: _Row | None) -> list[Wanted]:
        wanted = [self._request(Kind.HISTORY, block, self.pools.blocks) for block in blocks if not block.is_here]
        if state is not None and not state.is_here:
            wanted.append(self._request(Kind.STATE, state, self.pools.states))
        return wanted

    def _request(self, kind: Kind, row: _Row, pool: Slab) -> Wanted:
        target = pool.view(row.row)[: self.layout.payload_bytes(kind)]
        return Wanted(kind, self.keys[row.block], (row.block + 1) * self.step, target)

    def _fetch(self, wanted: list[Wanted]) -> set[tuple[Kind, bytes]]:
        """What of it was loaded, by kind and key."""
        if not wanted or self.source is None:
            return set()
        result = self.source.fetch(self.layout, wanted)
        self.bytes_received += result.bytes_received
        self.has_fault = self.has_fault or result.fault is not None
        return {(record.kind, record.key) for record, is_loaded in zip(wanted, result.loaded, strict=True) if is_loaded}

    def _keep_blocks(self, blocks: list[_Row], fetched: set[tuple[Kind, bytes]]) -> None:
        """Publish what was loaded and hold the run; whatever lies behind a gap stays findable, but is not held."""
        for block in blocks:
            is_fetched = (Kind.HISTORY, self.keys[block.block]) in fetched
            if not (block.is_here or is_fetched):
                self.pools.blocks.release(block.row)
                self._forget_block(block.block)
                continue
            row = self.pools.blocks.publish_block(block.row, self.keys, index=block.block)
            self.fetched_blocks += is_fetched
            if len(self.held) == block.block:
                self.held.append(row)
            else:
                self.pools.blocks.release(row)

    def _keep_state(self, state: _Row | None, fetched: set[tuple[Kind, bytes]]) -> None:
        if state is None:
            return
        key = self.keys[state.block]
        if state.is_here or (Kind.STATE, key) in fetched:
            self.slot = self.pools.states.publish(state.row, key)
        else:
            self.pools.states.release(state.row)

    def _forget_block(self, index: int) -> None:
        """A block that the service did not send, though nothing cut the transfer, will be offered again."""
        if not self.has_fault:
            self.found = replace(self.found, history_blocks=min(self.found.history_blocks, index))

    def _forget_state(self, position: int | None) -> None:
        """Let go of a state that did not come, or came without all of the history before it."""
        if self.slot is not None:
            self.pools.states.release(self.slot)
            self.slot = None
        elif position is not None:
            self.states.discard(position)
            if not self.has_fault:
                left = tuple(tokens for tokens in self.found.state_tokens if tokens != position)
                self.found = replace(self.found, state_tokens=left)

    def _restored(self, plan: RestorePlan, *, was_asked: bool) -> Restored:
        return Restored(
            plan=plan, blocks=self.held, slot=self.slot, found=self.found, was_asked=was_asked,
            fetched_blocks=self.fetched_blocks, bytes_received=self.bytes_received,
        )  # fmt: skip
