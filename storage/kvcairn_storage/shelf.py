"""Shelf: the records of one tenant and layout, and the tree that their parents make. Pure, not thread-safe.

A link counts only where the parent is there and stands one block before the child. Positions therefore fall along
every link, and no set of headers, however forged, makes a cycle.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvcairn_protocol.layout import Kind
from kvcairn_storage.slot import Phase, Slot
from kvcairn_storage.store import Entry, RecordKey

STEM_BYTES = 16
COMPANIONS = (Kind.STATE, Kind.WINDOW)


class Run(NamedTuple):
    """What is stored of a prompt: the longest run of history blocks, and the states inside it, deepest first."""

    history_blocks: int
    state_tokens: list[int]


class Shelf:
    """Slots by kind and key. A slot is linked while it is WRITING or PRESENT; children keep their parents.

    Positions of what is PRESENT are kept a second time, for lookups: a run of 2,048 keys takes a fraction of a
    millisecond.
    """

    def __init__(self) -> None:
        self.slots: dict[Kind, dict[bytes, Slot]] = {kind: {} for kind in Kind}
        self._served: dict[Kind, dict[bytes, int]] = {kind: {} for kind in Kind}
        self._stems: dict[bytes, list[Slot]] = {}
        self._children: Counter[tuple[bytes, int]] = Counter()

    def link(self, slot: Slot) -> None:
        """Make the slot known, and a part of the tree if it is a block of a chain."""
        self.slots[slot.key.kind][slot.key.key] = slot
        if _is_block(slot):
            self._stems.setdefault(slot.key.key[:STEM_BYTES], []).append(slot)
            self._children[slot.entry.parent, slot.entry.position] += 1

    def unlink(self, slot: Slot) -> None:
        """Take the slot out of the tree; it stays known by its key."""
        if not _is_block(slot):
            return
        stem = slot.key.key[:STEM_BYTES]
        self._stems[stem].remove(slot)
        if not self._stems[stem]:
            del self._stems[stem]
        place = slot.entry.parent, slot.entry.position
        self._children[place] -= 1
        if not self._children[place]:
            del self._children[place]

    def show(self, slot: Slot) -> None:
        """Let lookups find the slot."""
        slot.phase = Phase.PRESENT
        self._served[slot.key.kind][slot.key.key] = slot.entry.position

    def hide(self, slot: Slot) -> None:
        """Let lookups find the slot no more."""
        slot.phase = Phase.LEAVING
        del self._served[slot.key.kind][slot.key.key]

    def forget(self, slot: Slot) -> None:
        """Drop an unlinked slot's key, unless another slot has taken it."""
        known = self.slots[slot.key.kind]
        if known.get(slot.key.key) is slot:
            del known[slot.key.key]

    def is_empty(self) -> bool:
        """Whether there is nothing, not even on its way in or out."""
        return not any(self.slots.values())

    def parent(self, slot: Slot) -> Slot | None:
        """The block before this one, if it is there and stands where it must."""
        if not _is_block(slot):
            return None
        return self._block_before(slot.entry)

    def misplaces(self, entry: Entry) -> bool:
        """Whether the parent of this history entry is there, and not one block before it; a first block has none."""
        if entry.position == entry.block_tokens:
            return False
        return entry.parent in self._stems and self._block_before(entry) is None

    def contradicts(self, key: RecordKey, entry: Entry) -> bool:
        """Whether the block whose state or window rows this is stands here, at another position or after another block.

        Such a record could never be used, and would keep the right one out.
        """
        if key.kind is Kind.HISTORY or not entry.block_tokens:
            return False
        block = self.slots[Kind.HISTORY].get(key.key)
        if block is None or block.phase not in (Phase.WRITING, Phase.PRESENT):
            return False
        return (block.entry.position, block.entry.parent) != (entry.position, entry.parent)

    def is_leaf(self, slot: Slot) -> bool:
        """Whether no block continues this one."""
        place = slot.key.key[:STEM_BYTES], slot.entry.position + slot.entry.block_tokens
        return not (_is_block(slot) and place in self._children)

    def companions(self, slot: Slot) -> list[Slot]:
        """The state and the window record at a block's key, which go when it does."""
        if not _is_block(slot):
            return []
        found = (self.slots[kind].get(slot.key.key) for kind in COMPANIONS)
        return [other for other in found if other is not None and other.phase in (Phase.WRITING, Phase.PRESENT)]

    def may_go(self, slot: Slot) -> bool:
        """Whether a slot that is not busy can be evicted: there, without descendants, nothing that stays at its key."""
        if slot.phase is not Phase.PRESENT:
            return False
        if slot.key.kind is not Kind.HISTORY:
            return True
        return self.is_leaf(slot) and not any(other.stays for other in self.companions(slot))

    def lineage(self, slots: Iterable[Slot]) -> list[Slot]:
        """These slots and all ancestors of theirs, each once, deepest first; linear in what it returns."""
        found: dict[Slot, None] = {}
        for slot in slots:
            current: Slot | None = slot
            while current is not None and current not in found:
                found[current] = None
                current = self.parent(current)
        return sorted(found, key=_position, reverse=True)

    def longest_run(self, keys: Sequence[bytes], *, block_tokens: int) -> Run:
        """The run from the first key on in which key i stands at (i + 1) · block_tokens."""
        blocks, history, states = 0, self._served[Kind.HISTORY], self._served[Kind.STATE]
        for key in keys:
            if history.get(key) != (blocks + 1) * block_tokens:
                break
            blocks += 1
        ends = range(block_tokens, (blocks + 1) * block_tokens, block_tokens)
        found = [position for key, position in zip(keys, ends, strict=False) if states.get(key) == position]
        return Run(blocks, found[::-1])

    def _block_before(self, entry: Entry) -> Slot | None:
        place = entry.position - entry.block_tokens
        for other in self._stems.get(entry.parent, ()):
            if other.entry.position == place:
                return other
        return None


def _position(slot: Slot) -> int:
    return slot.entry.position


def _is_block(slot: Slot) -> bool:
    return slot.key.kind is Kind.HISTORY and slot.entry.block_tokens > 0
