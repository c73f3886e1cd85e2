"""Persist: what a run captured, and what the pools have but the service has lost, becomes records."""

from collections.abc import Sequence
from typing import Protocol

import torch

from kvcairn_client.records import Outgoing
from kvcairn_client.restore import Restored
from kvcairn_client.sessions import Pools
from kvcairn_client.slab import Slab
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.prefix import parent_of


class Queue(Protocol):
    """What this needs of a StoreQueue."""

    def submit(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> int: ...


def outgoing(layout: Layout, keys: Sequence[bytes], kind: Kind, index: int, payload: torch.Tensor) -> Outgoing:
    """The record of block `index`, or of the state at its end. payload: uint8, on the host, never changed again."""
    position = (index + 1) * layout.block_tokens
    return Outgoing(kind, keys[index], position, parent_of(keys, index), payload.numpy().data)


class Offers:
    """One run's records for the service: each is queued as soon as it is captured; without a queue, nothing is."""

    def __init__(
        self, pools: Pools, queue: Queue | None, keys: Sequence[bytes], restored: Restored, *, codec: CodecName
    ) -> None:
        self.keys = keys
        self._codec = codec
        self.bytes_offered = 0
        self._queue, self._layout, self._restored = queue, pools.model_cache.layout, restored
        self._stored_states = set(restored.found.state_tokens)
        # Where nobody was asked, what stands in the pool was loaded or offered when it came there.
        self._known_blocks = {key for key in keys if key in pools.blocks}
        self._known_states = {key for key in keys if key in pools.states}

    def is_new_block(self, index: int) -> bool:
        """Whether the service lacks this block, as far as is known."""
        if self._restored.was_asked:
            return index >= self._restored.found.history_blocks
        return self.keys[index] not in self._known_blocks

    def is_new_state(self, index: int) -> bool:
        """Whether the service lacks the state at this block's end, as far as is known."""
        if self._restored.was_asked:
            return (index + 1) * self._layout.block_tokens not in self._stored_states
        return self.keys[index] not in self._known_states

    def add(self, kind: Kind, index: int, payload: torch.Tensor) -> None:
        """Offer one record; never blocks."""
        if self._queue is not None:
            record = outgoing(self._layout, self.keys, kind, index, payload)
            self._queue.submit(self._layout, [record], codec=self._codec)
            self.bytes_offered += len(payload)


def pooled_records(pools: Pools, keys: Sequence[bytes], *, first_block: int, states: Sequence[int]) -> list[Outgoing]:
    """Copies of what the pools have of a prompt from block `first_block` on, and of the states at these positions.

    For a service that lost them, or was away when they were made: without them, it would never find the blocks behind.
    """
    layout = pools.model_cache.layout
    records = []
    for index in range(first_block, len(keys)):
        payload = _copy(pools.blocks, keys[index], size_bytes=layout.payload_bytes(Kind.HISTORY))
        if payload is None:
            break
        records.append(outgoing(layout, keys, Kind.HISTORY, index, payload))
    for position in states:
        index = position // layout.block_tokens - 1
        payload = _copy(pools.states, keys[index], size_bytes=layout.payload_bytes(Kind.STATE))
        if payload is not None:
            records.append(outgoing(layout, keys, Kind.STATE, index, payload))
    return records


def _copy(pool: Slab, key: bytes, *, size_bytes: int) -> torch.Tensor | None:
    row = pool.acquire(key)
    if row is None:
        return None
    payload = pool.bytes[row, :size_bytes].clone()
    pool.release(row)
    return payload
