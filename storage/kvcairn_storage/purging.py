"""Purging: undo what a writer stored, and say who stored what. Decided under the store's lock; waits for the disk."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_storage.change import Cause, Change
from kvcairn_storage.purge import Purged, Selection, Suspect, Suspects
from kvcairn_storage.slot import Phase, Slot
from kvcairn_storage.space import Space

BATCH_RECORDS = 256
"""Removals go to the disk at most so many records at a time, so that stores in between are not held up."""

MAX_PASSES = 16
"""Engines that restored what is being purged may store more of it meanwhile; they are not waited for for ever."""


@dataclass(slots=True)
class WriterTotals:
    """What is stored of one writer's. first_created, last_created: seconds since the epoch."""

    writer: str
    records: int = 0
    stored_bytes: int = 0
    first_created: float = float("inf")
    last_created: float = float("-inf")

    def count(self, slot: Slot) -> None:
        entry = slot.entry
        self.records += 1
        self.stored_bytes += HEADER_BYTES + entry.stored_bytes
        self.first_created = min(self.first_created, entry.created)
        self.last_created = max(self.last_created, entry.created)


class Purging:
    """The writers of one prefix store's records. Thread-safe."""

    def __init__(self, space: Space, lock: threading.Lock, carry_out: Callable[[Change], int]) -> None:
        """carry_out: deletes on the disk what a change takes out, and settles it."""
        self._space = space
        self._lock = lock
        self._carry_out = carry_out

    def writers(self, tenant: str) -> list[WriterTotals]:
        """Who stored what is there of a tenant, the last to store first. Linear in the records."""
        totals: dict[str, WriterTotals] = {}
        for slot in self._slots(tenant, None):
            if slot.phase is Phase.PRESENT:
                totals.setdefault(slot.entry.writer, WriterTotals(slot.entry.writer)).count(slot)
        return sorted(totals.values(), key=lambda each: each.last_created, reverse=True)

    def preview(self, selection: Selection) -> Purged:
        """What `purge` would delete now."""
        return Purged.sum(self._pass(Suspects(selection), selection))

    def purge(self, selection: Selection) -> Purged:
        """Delete what the selection takes; on return it is committed. Held and pinned records go like all others.

        What is being written is waited for and goes, too, and so does what arrives meanwhile, until a pass finds
        nothing; a writer who may go on writing can outlast that. Where the disk refuses, its error is raised: what is
        left is found by the next call, since descendants are deleted before what leads to them.
        """
        suspects, total = Suspects(selection), Purged()
        for _ in range(MAX_PASSES):
            found = self._pass(suspects, selection)[::-1]
            for start in range(0, len(found), BATCH_RECORDS):
                total += self._remove(found[start : start + BATCH_RECORDS])
            if not found:
                break
        return total

    def _slots(self, tenant: str, layout: bytes | None) -> list[Slot]:
        with self._lock:
            return self._space.slots(tenant, layout)

    def _pass(self, suspects: Suspects, selection: Selection) -> list[Suspect]:
        return suspects.among(self._slots(selection.tenant, selection.layout))

    def _remove(self, batch: Sequence[Suspect]) -> Purged:
        """Delete those that are still what they were found to be: a key may have got another record meanwhile."""
        with self._lock:
            in_flight = {suspect.slot.change for suspect in batch if suspect.slot.change is not None}
        wait(change.settled for change in in_flight)
        with self._lock:
            there = [suspect for suspect in batch if suspect.slot.phase is Phase.PRESENT]
            change = self._space.remove((suspect.slot for suspect in there), Cause.PURGED)
        self._carry_out(change)
        return Purged.sum(there)
