"""Space: what is stored, what it is charged, and what goes when room is short. Pure: no I/O, no clock, no lock.

Reserve, write, commit: a reservation counts before a byte is written, and what it displaces counts until it is gone
from the disk, so that neither the capacity nor a quota is exceeded whatever fails and however many write at once.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from kvcairn_protocol.layout import Kind
from kvcairn_storage.change import Cause, Change, Shortage, Wait
from kvcairn_storage.charges import Charges
from kvcairn_storage.eviction import Budget, Candidates
from kvcairn_storage.pins import Pins
from kvcairn_storage.shelf import Shelf
from kvcairn_storage.slot import Phase, Slot
from kvcairn_storage.store import Entry, RecordKey
from kvcairn_storage.tenancy import Tenancy
from kvcairn_storage.usage import Ledger, Usage


class Space:
    """The accounting of one store. Its owner calls it under one lock and does the I/O outside."""

    def __init__(self, *, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.pins = Pins()
        self._shelves: dict[tuple[str, bytes], Shelf] = {}
        self._charges = Charges()
        self._sequence = 0
        self._ledger = Ledger()

    @property
    def charged_bytes(self) -> int:
        """Everything that counts against capacity_bytes right now."""
        return self._charges.total_bytes

    def load(self, entries: Iterable[tuple[RecordKey, Entry]]) -> None:
        """Take in what is on disk, in the order of its last use; of equal moments the deeper block is the older.

        Where the disk knows of a block's use and not that it counts for its ancestors, because the recency was not
        written any more, it counts now.
        """
        slots = [self._slot(key, entry) for key, entry in entries]
        for slot in sorted(slots, key=lambda slot: slot.entry.created):
            self._charges.add(slot)
            self._shelf(slot).link(slot)
            self._shelf(slot).show(slot)
            self._ledger.arrived(slot)
        for slot in sorted(slots, key=lambda slot: -slot.entry.position):
            parent = self._shelf(slot).parent(slot)
            if parent is not None:
                parent.entry.last_used = max(parent.entry.last_used, slot.entry.last_used)
        self._renew(sorted(slots, key=lambda slot: (slot.entry.last_used, -slot.entry.position)))

    def shelf(self, tenant: str, layout: bytes) -> Shelf | None:
        """The records of one tenant and layout, if it ever had any."""
        return self._shelves.get((tenant, layout))

    def find(self, key: RecordKey) -> Slot | None:
        """The slot at a key, in whatever phase."""
        shelf = self._shelves.get((key.tenant, key.layout))
        return shelf.slots[key.kind].get(key.key) if shelf else None

    def present(self, key: RecordKey) -> Slot | None:
        """The slot at a key if it can be served."""
        slot = self.find(key)
        return slot if slot is not None and slot.phase is Phase.PRESENT else None

    def slots(self, tenant: str | None = None, layout: bytes | None = None) -> list[Slot]:
        """Every slot, or those of a tenant, or of one layout of it: a copy, to be looked through without the lock."""
        found: list[Slot] = []
        for (owner, fingerprint), shelf in self._shelves.items():
            if tenant in (None, owner) and layout in (None, fingerprint):
                for known in shelf.slots.values():
                    found.extend(known.values())
        return found

    def misplaces(self, key: RecordKey, entry: Entry) -> bool:
        """Whether a block's parent is there but not one block before it."""
        shelf = self._shelves.get((key.tenant, key.layout))
        is_block = key.kind is Kind.HISTORY and entry.block_tokens > 0
        return is_block and shelf is not None and shelf.misplaces(entry)

    def contradicts(self, key: RecordKey, entry: Entry) -> bool:
        """Whether a state or window record does not fit the block at its key: see Shelf."""
        shelf = self._shelves.get((key.tenant, key.layout))
        return shelf is not None and shelf.contradicts(key, entry)

    def reserve(self, key: RecordKey, entry: Entry, *, quota_bytes: int | None = None) -> Change | Shortage | Wait:
        """Make room for a record that is not there, and count it as used now.

        The new slot is WRITING until the change is settled, and cannot be chosen to go; neither can its ancestors, nor
        the block at its key. On Shortage and Wait nothing has changed.
        """
        slot = self._slot(key, entry)
        change = Change(added=slot)
        self._charges.add(slot)
        self._shelf(slot).link(slot)
        self._renew([slot])
        obstacle = self._make_room(change, slot, quota_bytes)
        if obstacle is None:
            self._start(change)
            return change
        self._retract(slot)
        for victim in change.removed:
            self._reinstate(victim)
        return obstacle

    def remove(self, slots: Iterable[Slot], cause: Cause) -> Change:
        """Take PRESENT slots out of service; they stay charged until the change is settled."""
        change = Change()
        for slot in slots:
            self._displace(change, slot, cause)
        return self._start(change)

    def shrink(self, *, at_most_records: int) -> Change:
        """Take out what exceeds the capacity, some records at a time; the change is empty once it fits."""
        change, budget = Change(), self._budget(self._charges.everybody, self.capacity_bytes)
        while self.charged_bytes > self.capacity_bytes and len(change.removed) < at_most_records:
            victim = budget.victim(None)
            if victim is None:
                break
            self._take_out(change, victim, Cause.EVICTED)
        return self._start(change)

    def shed(self, key: RecordKey, *, need_bytes: int) -> Change:
        """Take out at least so many bytes for a record that the disk refused; empty if that much may not go.

        The capacity promised more than the disk has, because somebody else fills it, or free pages lie too scattered.
        """
        change, budget = Change(), self._budget(self._charges.everybody, self.capacity_bytes)
        while sum(slot.charged_bytes for slot in change.removed) < need_bytes:
            victim = budget.victim(key.kind)
            if victim is None:
                for slot in change.removed:
                    self._reinstate(slot)
                return Change()
            self._take_out(change, victim, Cause.EVICTED)
        return self._start(change)

    def expire(self, tenant: str, *, before: float, at_most_records: int) -> Change:
        """Take out a tenant's records last used before a moment, leaves first; a block with descendants stays."""
        change = Change()
        orders = self._charges.tenancy(tenant).orders
        for kind in (Kind.WINDOW, Kind.STATE, Kind.HISTORY):
            candidates = Candidates(orders[kind], self._may_go)
            while (slot := candidates.oldest()) is not None and slot.entry.last_used < before:
                if len(change.removed) >= at_most_records:
                    return self._start(change)
                self._take_out(change, slot, Cause.EXPIRED)
        return self._start(change)

    def commit(self, change: Change) -> None:
        """The disk has it: the new record is served, what went is counted."""
        self._charges.settle(change)
        if change.added is not None:
            change.added.change = None
            self._shelf(change.added).show(change.added)
            self._ledger.arrived(change.added)
        for slot, cause in change.removed.items():
            slot.phase, slot.change = Phase.GONE, None
            self._shelf(slot).forget(slot)
            self._ledger.left(slot, cause)

    def undo(self, change: Change) -> None:
        """The disk does not have it: the new record never was, what was to go is served again."""
        self._charges.settle(change)
        if change.added is not None:
            self._retract(change.added)
        for slot in reversed(change.removed):
            self._reinstate(slot)
            self._charges.restore(slot)

    def use(self, slots: Iterable[Slot], *, now: float, counted: bool = False) -> list[Slot]:
        """Make these, and the ancestors of blocks among them, the most recently used; returns all of them.

        counted: whether these slots (not their ancestors) have been used once more.
        """
        by_shelf: dict[Shelf, list[Slot]] = {}
        for slot in slots:
            by_shelf.setdefault(self._shelf(slot), []).append(slot)
            if counted:
                self._ledger.used(slot)
                slot.entry.uses += 1
        renewed = [slot for shelf, some in by_shelf.items() for slot in shelf.lineage(some)]
        for slot in renewed:
            slot.entry.last_used = max(slot.entry.last_used, now)
            self._ledger.moved(slot)
        self._renew(renewed)
        return renewed

    def repin(self, keys: Iterable[RecordKey], *, now: float) -> list[Slot]:
        """Look again which records at these keys are pinned; those that were until now count as used now, and are
        returned with the blocks before them."""
        freed = []
        for slot in filter(None, map(self.find, keys)):
            was_pinned, slot.pinned = slot.pinned, self.pins.covers(slot.key, charged_bytes=slot.charged_bytes)
            if slot.pinned and not was_pinned:
                self._charges.discard(slot)
            if was_pinned and not slot.pinned and slot.phase is not Phase.LEAVING:
                freed.append(slot)
            if was_pinned is not slot.pinned and slot.phase is not Phase.WRITING:
                self._ledger.pinned(slot)
        return self.use(freed, now=now)

    def usage(self, tenant: str | None = None) -> list[Usage]:
        """The totals by tenant, layout and kind, as copies."""
        return [
            replace(usage, oldest_created=self._oldest(usage), latest_use=usage.latest_use if usage.records else None)
            for usage in self._ledger.usages(tenant)
        ]

    def forget(self, tenant: str, layout: bytes | None = None) -> None:
        """Drop what is remembered of a tenant's layouts, or of one of them, where nothing is kept any more."""
        for owner, fingerprint in list(self._shelves):
            if owner == tenant and layout in (None, fingerprint) and self._shelves[owner, fingerprint].is_empty():
                del self._shelves[owner, fingerprint]
                self._ledger.forget(owner, fingerprint)
        if self._charges.tenancy(tenant).is_empty():
            del self._charges.tenancies[tenant]

    def faults(self) -> list[str]:
        """What breaks the accounting identity: every sum is that of the records that are here or on their way."""
        found = self.slots()
        counted = sum(slot.phase in (Phase.PRESENT, Phase.LEAVING) for slot in found)
        by_sums = sum(usage.records for usage in self._ledger.usages(None))
        faults = self._charges.faults([slot for slot in found if slot.phase in (Phase.WRITING, Phase.PRESENT)])
        astray = sum(slot.pinned is not self.pins.covers(slot.key, charged_bytes=slot.charged_bytes) for slot in found)
        faults += (
            [f"pins: {astray} records are pinned though no pin names them, or the other way round"] if astray else []
        )
        return faults + ([f"records: {by_sums} by the sums, {counted} by the records"] if by_sums != counted else [])

    def _make_room(self, change: Change, slot: Slot, quota_bytes: int | None) -> Shortage | Wait | None:
        """Choose what must go for a slot that is already charged."""
        tenancy = self._charges.tenancy(slot.key.tenant)
        if quota_bytes is not None and tenancy.total_bytes > quota_bytes:
            wait = self._charges.room_to_come(tenancy.total_bytes - quota_bytes, tenant=slot.key.tenant)
            budget = self._budget(tenancy, quota_bytes)
            if wait or not self._evict_for(change, budget, lambda: tenancy.total_bytes <= quota_bytes):
                return wait or Shortage.QUOTA
        if self.charged_bytes > self.capacity_bytes:
            wait = self._charges.room_to_come(self.charged_bytes - self.capacity_bytes)
            budget = self._budget(self._charges.everybody, self.capacity_bytes)
            if wait or not self._evict_for(change, budget, lambda: self.charged_bytes <= self.capacity_bytes):
                return wait or Shortage.FULL
        return None

    def _evict_for(self, change: Change, budget: Budget, fits: Callable[[], bool]) -> bool:
        added = change.added
        while not fits():
            victim = budget.victim(added.key.kind if added else None)
            if victim is None:
                return False
            self._take_out(change, victim, Cause.EVICTED)
        return True

    def _budget(self, tenancy: Tenancy, limit_bytes: int) -> Budget:
        return Budget(limit_bytes, tenancy, self._may_go)

    def _take_out(self, change: Change, slot: Slot, cause: Cause) -> None:
        """Displace a slot and, with a block, what stands at its key; nothing of it may be busy."""
        for companion in self._shelf(slot).companions(slot):
            self._displace(change, companion, cause)
        self._displace(change, slot, cause)

    def _displace(self, change: Change, slot: Slot, cause: Cause) -> None:
        change.removed[slot] = cause
        self._shelf(slot).hide(slot)
        self._charges.take(slot)
        self._shelf(slot).unlink(slot)

    def _reinstate(self, slot: Slot) -> None:
        slot.change = None
        self._charges.add(slot)
        self._shelf(slot).link(slot)
        self._shelf(slot).show(slot)

    def _retract(self, slot: Slot) -> None:
        """Undo a slot that was to be written."""
        slot.phase, slot.change = Phase.GONE, None
        self._charges.take(slot)
        self._charges.discard(slot)
        self._shelf(slot).unlink(slot)
        self._shelf(slot).forget(slot)

    def _start(self, change: Change) -> Change:
        if change.added is not None:
            change.added.change = change
        for slot in change.removed:
            slot.change = change
            self._charges.discard(slot)
        if change:
            self._charges.start(change)
        return change

    def _renew(self, slots: Iterable[Slot]) -> None:
        """Make these the most recently used, the last of them the most recent; thousands at a time."""
        for sequence, slot in enumerate(slots, self._sequence + 1):
            slot.sequence = self._sequence = sequence
            self._charges.append(slot)

    def _slot(self, key: RecordKey, entry: Entry) -> Slot:
        slot = Slot(key, entry)
        slot.pinned = self.pins.covers(key, charged_bytes=slot.charged_bytes)
        return slot

    def _may_go(self, slot: Slot) -> bool:
        return not slot.busy and self._shelf(slot).may_go(slot)

    def _shelf(self, slot: Slot) -> Shelf:
        place = slot.key.tenant, slot.key.layout
        shelf = self._shelves.get(place)
        if shelf is None:
            shelf = self._shelves[place] = Shelf()
        return shelf

    def _oldest(self, usage: Usage) -> float | None:
        known = self._shelves[usage.tenant, usage.layout].slots[usage.kind].values()
        return next((slot.entry.created for slot in known), None)
