"""Sessions: a cache at any position, kept in the two pools; snapshot, restore and fork."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from transformers import DynamicCache

from kvcairn_client.assemble import assemble
from kvcairn_client.cache_rows import as_bytes, history_payload, rows_of, state_payload
from kvcairn_client.errors import ClosedClient, PoolExhausted, PromptNotSupported
from kvcairn_client.model_layout import ModelCache
from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_protocol.layout import Kind


@dataclass(frozen=True, slots=True)
class Pools:
    """The two pools of one model in this process, and how its caches are taken apart."""

    model_cache: ModelCache
    blocks: BlockPool
    states: StatePool


class Session:
    """One run's cache at `position`: its blocks, shared where another session has the same, and a state slot.

    Holds its rows until `close`. Immutable; restore and fork leave it as it is. Thread-safe: a close while another
    thread restores or forks costs that thread nothing, or a ClosedClient.
    """

    def __init__(self, pools: Pools, blocks: Sequence[int], slot: int, *, position: int) -> None:
        self.position = position
        self._pools = pools
        self._blocks = list(blocks)
        self._slot: int | None = slot
        self._lock = threading.Lock()

    def restore(self) -> DynamicCache:
        """A new cache, byte for byte the one that was snapshot, whose tensors share no memory with the pools."""
        # A fork holds the rows while they are copied, without keeping others from this session meanwhile.
        with self.fork() as held:
            return held._assemble()

    def fork(self) -> "Session":
        """A second session at the same position; costs no memory, since neither ever changes."""
        pools = self._pools
        with self._lock:
            if self._slot is None:
                raise ClosedClient("the session is closed and its rows may belong to another; take a new snapshot")
            slot = pools.states.hold(self._slot)
            return Session(pools, [pools.blocks.hold(row) for row in self._blocks], slot, position=self.position)

    def close(self) -> None:
        """Give the rows back. A second close does nothing."""
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            self._pools.states.release(slot)
            self._pools.blocks.release_run(self._blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _assemble(self) -> DynamicCache:
        """Of a session that nobody else knows."""
        pools, slot = self._pools, self._slot
        assert slot is not None  # noqa: S101 - it was forked just now
        return assemble(pools.model_cache, pools.blocks, self._blocks, pools.states, slot, position=self.position)


def snapshot(pools: Pools, cache: DynamicCache, *, keys: Sequence[bytes] = ()) -> Session:
    """Copy a live cache into the pools, at whatever position it stands.

    keys: the prefix keys of its first blocks, as far as block-wise prefill made them; those blocks are shared. Entries
    that decoding made differ in their last bits and stay this session's own. PoolExhausted if other sessions hold
    too many rows; PromptNotSupported for an empty cache; ModelNotSupported for rows of other dtypes than the layout's.
    """
    position = cache.get_seq_length()
    if not position:
        raise PromptNotSupported("the cache is empty: there is nothing to snapshot")
    segments = pools.model_cache.slot_layout.segments(Kind.STATE)
    slot = pools.states.take_filled(partial(state_payload, segments, cache.layers))
    if slot is None:
        raise PoolExhausted(f"all {pools.states.capacity} state slots are held: close a session, or make more")
    taken: list[int] = []
    try:
        for index in range(-(-position // pools.model_cache.layout.block_tokens)):
            taken.append(_block(pools, cache.layers, keys, index=index, position=position))  # noqa: PERF401 - released if one fails
    except BaseException:
        pools.blocks.release_run(taken)
        pools.states.release(slot)
        raise
    return Session(pools, taken, slot, position=position)


def _block(pools: Pools, layers: Sequence[Any], keys: Sequence[bytes], *, index: int, position: int) -> int:
    """A held row with block `index`: the shared one where the key is known and here, else a copy."""
    shared = pools.blocks.acquire(keys[index]) if index < len(keys) else None
    if shared is not None:
        return shared
    step = pools.model_cache.layout.block_tokens
    tokens = range(index * step, min(position, (index + 1) * step))
    row = pools.blocks.take_filled(partial(_write_block, pools, layers, tokens))
    if row is None:
        raise PoolExhausted(f"all {pools.blocks.capacity} blocks are held: close a session, or make the pool larger")
    is_shareable = len(tokens) == step and index < len(keys)
    return pools.blocks.publish_block(row, keys, index=index) if is_shareable else row


def _write_block(pools: Pools, layers: Sequence[Any], tokens: range, block: torch.Tensor) -> None:
    """The entries that a block, complete or not, has so far, each stream's from its segment's start."""
    segments = pools.model_cache.layout.segments(Kind.HISTORY)
    if len(tokens) == pools.model_cache.layout.block_tokens:
        block.copy_(history_payload(segments, layers, tokens))
        return
    for segment in segments:
        rows = rows_of(layers[segment.stream.layer], segment.stream)
        ratio = pools.model_cache.layout.block_tokens // segment.rows
        if rows is not None:
            data = as_bytes(rows[tokens.start // ratio : tokens.stop // ratio])
            block[segment.offset : segment.offset + len(data)] = data
