"""Purge: which records go when what somebody stored has to be undone. Pure, not thread-safe.

Whoever restored a bad record computed what follows from it, and stored that under a name of its own: so the records
behind a bad one are bad as well, whoever wrote them (docs/decisions/purge.md).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_storage.shelf import STEM_BYTES
from kvcairn_storage.slot import Slot

_Place = tuple[bytes, bytes, int]
"""A layout, the first bytes of a key, and the position of what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Records of one tenant: of this layout, by this writer, stored in [since, until); None and infinity for any.

    since, until: seconds since the epoch. descendants: whether what follows the named records goes with them.
    """

    tenant: str
    layout: bytes | None = None
    writer: str | None = None
    since: float = -math.inf
    until: float = math.inf
    descendants: bool = True

    def names(self, slot: Slot) -> bool:
        """Whether a record of the tenant and the layout is one by itself."""
        entry = slot.entry
        return self.writer in (None, entry.writer) and self.since <= entry.created < self.until


class Suspect(NamedTuple):
    """A record to purge. is_named: by the selection itself, and not only as what follows one that is."""

    slot: Slot
    is_named: bool


@dataclass(frozen=True, slots=True)
class Purged:
    """How many records, how many of them only as descendants, and their bytes, headers included."""

    records: int = 0
    descendants: int = 0
    stored_bytes: int = 0

    @staticmethod
    def sum(suspects: Iterable[Suspect]) -> "Purged":
        found = list(suspects)
        return Purged(
            records=len(found),
            descendants=sum(not suspect.is_named for suspect in found),
            stored_bytes=sum(HEADER_BYTES + suspect.slot.entry.stored_bytes for suspect in found),
        )

    def __add__(self, other: "Purged") -> "Purged":
        return Purged(
            self.records + other.records,
            self.descendants + other.descendants,
            self.stored_bytes + other.stored_bytes,
        )


class Suspects:
    """Finds what a selection takes, and remembers it, so that what is stored later behind it is found, too."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._taken: set[_Place] = set()
        self._taken_blocks: set[_Place] = set()

    def among(self, slots: Iterable[Slot]) -> list[Suspect]:
        """The suspects of these, ancestors first. Linear: a sort of a million would hold up every other thread."""
        found = []
        for slot in _ancestors_first(slots):
            is_named = self._selection.names(slot)
            if is_named or (self._selection.descendants and self._descends(slot)):
                self._take(slot)
                found.append(Suspect(slot, is_named))
        return found

    def _descends(self, slot: Slot) -> bool:
        """Whether it stands one block behind what is taken, or is a state or window record of a block that is."""
        entry = slot.entry
        if not entry.block_tokens:
            return False
        before = slot.key.layout, entry.parent, entry.position - entry.block_tokens
        return before in self._taken or (slot.key.kind is not Kind.HISTORY and _place(slot) in self._taken_blocks)

    def _take(self, slot: Slot) -> None:
        self._taken.add(_place(slot))
        if slot.key.kind is Kind.HISTORY:
            self._taken_blocks.add(_place(slot))


def _place(slot: Slot) -> _Place:
    return slot.key.layout, slot.key.key[:STEM_BYTES], slot.entry.position


def _ancestors_first(slots: Iterable[Slot]) -> Iterator[Slot]:
    """By position, blocks before what stands at their keys."""
    ranks: dict[tuple[int, Kind], list[Slot]] = defaultdict(list)
    for slot in slots:
        ranks[slot.entry.position, slot.key.kind].append(slot)
    for rank in sorted(ranks):
        yield from ranks[rank]
