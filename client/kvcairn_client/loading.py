"""Loading: one prompt's blocks and one state, into held rows of the pools, from the pools themselves or a service."""

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvcairn_client.records import FetchResult, Wanted
from kvcairn_client.sessions import Pools
from kvcairn_client.slab import Slab
from kvcairn_protocol.layout import Kind, Layout

_log = logging.getLogger(__name__)


class Fetches(Protocol):
    """What loading asks of a service; never raises for a fault of it (FailOpen does not)."""

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult: ...


class Shortfall(NamedTuple):
    """What was asked for and is not here. first_missing: the first such block, None if the state alone is missing."""

    first_missing: int | None
    is_state_missing: bool


class _Row(NamedTuple):
    """A held row for a block, or for the state at its end; is_here: it has its content already."""

    row: int
    block: int
    is_here: bool = False


class Loader:
    """Holds a run of a prompt's blocks from the first one on, and at most one state, until `release`.

    fetched_blocks, bytes_received: what came over the network. forged_records: what came with a wrong MAC. has_fault: a
    transfer ended early, so that what it did not bring may be there all the same.
    """

    def __init__(self, pools: Pools, keys: Sequence[bytes], *, usable_blocks: int) -> None:
        self._pools, self._keys, self._layout = pools, keys, pools.model_cache.layout
        self.blocks = pools.blocks.acquire_run(keys[:usable_blocks])
        self.slot: int | None = None
        self.fetched_blocks = self.bytes_received = self.forged_records = 0
        self.has_fault = False

    def release(self) -> None:
        """Give the rows back to the pools, where they stay findable."""
        self._pools.blocks.release_run(self.blocks)
        self._drop_state()
        self.blocks = []

    def load(self, source: Fetches | None, *, blocks: int, state_tokens: int | None) -> Shortfall | None:
        """Hold the first `blocks` blocks and the state at `state_tokens`; None if all of it is here now.

        What came is kept, and stays findable where it is not held. Without a source, only the pools are asked.
        """
        self._drop_state()
        rows = self._block_rows(source, range(len(self.blocks), blocks))
        state = self._state_row(source, state_tokens)
        try:
            fetched = self._fetch(source, rows, state)
        except BaseException:
            self._pools.blocks.release_run([row.row for row in rows])
            if state is not None:
                self._pools.states.release(state.row)
            raise
        self._keep_blocks(rows, fetched)
        self._keep_state(state, fetched)
        is_state_missing = state_tokens is not None and self.slot is None
        if len(self.blocks) >= blocks and not is_state_missing:
            return None
        return Shortfall(len(self.blocks) if len(self.blocks) < blocks else None, is_state_missing)

    def _block_rows(self, source: Fetches | None, blocks: range) -> list[_Row]:
        """A held row for each block: with its content, or to write; ends early where the pool has no room.

        All that is here is acquired before a row is taken, since taking one reclaims what nobody holds.
        """
        here = [self._pools.blocks.acquire(self._keys[block]) for block in blocks]
        rows: list[_Row] = []
        for block, row in zip(blocks, here, strict=True):
            found = _Row(row, block, is_here=True) if row is not None else _to_write(source, self._pools.blocks, block)
            if found is None:
                self._pools.blocks.release_run([row for row in here[len(rows) :] if row is not None])
                break
            rows.append(found)
        return rows

    def _state_row(self, source: Fetches | None, state_tokens: int | None) -> _Row | None:
        if state_tokens is None:
            return None
        block = state_tokens // self._layout.block_tokens - 1
        row = self._pools.states.acquire(self._keys[block])
        return _Row(row, block, is_here=True) if row is not None else _to_write(source, self._pools.states, block)

    def _fetch(self, source: Fetches | None, rows: list[_Row], state: _Row | None) -> set[tuple[Kind, bytes]]:
        """Fetch what is not here; returns what was loaded, by kind and key."""
        wanted = [self._wanted(Kind.HISTORY, row, self._pools.blocks) for row in rows if not row.is_here]
        if state is not None and not state.is_here:
            wanted.append(self._wanted(Kind.STATE, state, self._pools.states))
        if source is None or not wanted:
            return set()
        result = source.fetch(self._layout, wanted)
        self.bytes_received += result.bytes_received
        self.forged_records += result.forged_records
        self.has_fault = self.has_fault or result.fault is not None
        return {(record.kind, record.key) for record, is_loaded in zip(wanted, result.loaded, strict=True) if is_loaded}

    def _wanted(self, kind: Kind, row: _Row, pool: Slab) -> Wanted:
        target = pool.view(row.row)[: self._layout.payload_bytes(kind)]
        return Wanted(kind, self._keys[row.block], (row.block + 1) * self._layout.block_tokens, target)

    def _keep_blocks(self, rows: list[_Row], fetched: set[tuple[Kind, bytes]]) -> None:
        pool = self._pools.blocks
        for row in rows:
            is_fetched = (Kind.HISTORY, self._keys[row.block]) in fetched
            if not (row.is_here or is_fetched):
                pool.release(row.row)
                continue
            kept = pool.publish_block(row.row, self._keys, index=row.block)
            self.fetched_blocks += is_fetched
            if len(self.blocks) == row.block:
                self.blocks.append(kept)
            else:
                pool.release(kept)

    def _keep_state(self, state: _Row | None, fetched: set[tuple[Kind, bytes]]) -> None:
        if state is None:
            return
        key = self._keys[state.block]
        if state.is_here or (Kind.STATE, key) in fetched:
            self.slot = self._pools.states.publish(state.row, key)
        else:
            self._pools.states.release(state.row)

    def _drop_state(self) -> None:
        if self.slot is not None:
            self._pools.states.release(self.slot)
            self.slot = None


def _to_write(source: Fetches | None, pool: Slab, block: int) -> _Row | None:
    if source is None:
        return None
    row = pool.take()
    if row is None:
        _log.warning("every row of a pool is held (%d in all): block %d is not restored", pool.capacity, block)
    return None if row is None else _Row(row, block)
