"""The card's two pools, as real tensors: fixed-size blocks of history, and one fixed-size state slot a session.

Both lie on the host, pinned where the engine computes on a GPU, since that is where network bytes can land: a block is
laid out exactly as a history record's payload, and a slot begins with exactly a state record's payload.
"""

from collections.abc import Sequence

import torch

from kvcairn_client.cache_rows import as_rows
from kvcairn_client.slab import NO_PARENT, Slab
from kvcairn_protocol.layout import Kind, Layout, Segment


class BlockPool(Slab):
    """History blocks: 128 CSA and 4 HCA entries at 512 tokens, shared by all sessions with a prefix. Thread-safe."""

    def __init__(self, layout: Layout, *, capacity_blocks: int, pin: bool = False) -> None:
        super().__init__(rows=capacity_blocks, row_bytes=layout.payload_bytes(Kind.HISTORY), pin=pin)
        self.layout = layout

    def run(self, keys: Sequence[bytes]) -> int:
        """How many blocks from the first are here; none of them is held by this."""
        return next((index for index, key in enumerate(keys) if key not in self), len(keys))

    def acquire_run(self, keys: Sequence[bytes]) -> list[int]:
        """Hold the longest run from the first block; returns its rows, in order. Release them with `release_run`."""
        rows: list[int] = []
        for key in keys:
            row = self.acquire(key)
            if row is None:
                break
            rows.append(row)
        return rows

    def release_run(self, rows: Sequence[int]) -> None:
        """Release a prefix's blocks, deepest first, so that an ancestor always counts as used after its descendants."""
        for row in reversed(rows):
            self.release(row)

    def publish_block(self, row: int, keys: Sequence[bytes], *, index: int) -> int:
        """Publish a held row as block `index` of a prompt; see `publish`."""
        return self.publish(row, keys[index], parent=keys[index - 1] if index else NO_PARENT)

    def rows(self, blocks: Sequence[int], segment: Segment, *, device: torch.device | None = None) -> torch.Tensor:
        """One stream's rows of consecutive blocks, [rows, *row_shape]; a copy that owns its memory, on `device`."""
        part = self.bytes[:, segment.offset : segment.offset + segment.size_bytes]
        return as_rows(part.index_select(0, torch.tensor(blocks, dtype=torch.long, device="cpu")), segment).to(device)


class StatePool(Slab):
    """State slots: window, carries and pending rows at one position; a slot is a session's, or a finished state's.

    Finished states are found by the prefix key at their position, and reclaimed by their own recency. Thread-safe.
    """

    def __init__(self, slot_layout: Layout, *, slots: int, pin: bool = False) -> None:
        super().__init__(rows=slots, row_bytes=slot_layout.payload_bytes(Kind.STATE), pin=pin)
        self.layout = slot_layout

    def positions(self, keys: Sequence[bytes]) -> list[int]:
        """At which tokens of a prompt with these block keys a finished state is here, ascending."""
        return [(index + 1) * self.layout.block_tokens for index, key in enumerate(keys) if key in self]

    def rows(self, slot: int, segment: Segment, *, device: torch.device | None = None) -> torch.Tensor:
        """One stream's rows of a slot, [rows, *row_shape]; a copy that owns its memory, on `device`."""
        part = self.bytes[slot, segment.offset : segment.offset + segment.size_bytes]
        return as_rows(part.clone(), segment).to(device)
