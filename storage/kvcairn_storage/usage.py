"""Usage: running totals of what is stored, used and gone, by tenant, layout and kind. Pure, not thread-safe."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_storage.change import Cause
from kvcairn_storage.slot import Slot


@dataclass(slots=True, kw_only=True)
class Usage:
    """One tenant's records of one layout and kind.

    raw_bytes, stored_bytes: payloads decoded, and headers with payloads as kept; charged_bytes: whole pages.
    reused_records: used since they were stored; uses: how often, of those still here. What went is counted since the
    store was opened. oldest_created, latest_use: seconds since the epoch, None without records; latest_use may be that
    of a record that is gone meanwhile. pinned_records, pinned_bytes: those that a pin keeps, and their whole pages.
    """

    tenant: str
    layout: bytes
    kind: Kind
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    charged_bytes: int = 0
    reused_records: int = 0
    uses: int = 0
    evicted_records: int = 0
    evicted_bytes: int = 0
    expired_records: int = 0
    quarantined_records: int = 0
    deleted_records: int = 0
    purged_records: int = 0
    oldest_created: float | None = None
    latest_use: float | None = None
    pinned_records: int = 0
    pinned_bytes: int = 0

    def count(self, slot: Slot, *, sign: int) -> None:
        """Add (1) or take away (-1) one record."""
        entry = slot.entry
        self.records += sign
        self.raw_bytes += sign * entry.raw_bytes
        self.stored_bytes += sign * (HEADER_BYTES + entry.stored_bytes)
        self.charged_bytes += sign * slot.charged_bytes
        self.uses += sign * entry.uses
        self.reused_records += sign * (entry.uses > 0)
        if slot.pinned:
            self.count_pinned(slot, sign=sign)

    def count_pinned(self, slot: Slot, *, sign: int) -> None:
        self.pinned_records += sign
        self.pinned_bytes += sign * slot.charged_bytes

    def count_gone(self, slot: Slot, cause: Cause) -> None:
        self.evicted_records += cause is Cause.EVICTED
        self.evicted_bytes += (HEADER_BYTES + slot.entry.stored_bytes) * (cause is Cause.EVICTED)
        self.expired_records += cause is Cause.EXPIRED
        self.quarantined_records += cause is Cause.QUARANTINED
        self.deleted_records += cause is Cause.DELETED
        self.purged_records += cause is Cause.PURGED


class Ledger:
    """The totals of every tenant, layout and kind that held a record since the store was opened, or it was dropped."""

    def __init__(self) -> None:
        self._usages: dict[tuple[str, bytes, Kind], Usage] = {}

    def arrived(self, slot: Slot) -> None:
        self._usage(slot).count(slot, sign=1)
        self.moved(slot)

    def left(self, slot: Slot, cause: Cause) -> None:
        usage = self._usage(slot)
        usage.count(slot, sign=-1)
        usage.count_gone(slot, cause)

    def moved(self, slot: Slot) -> None:
        """The slot's last use is now what its entry says."""
        usage = self._usage(slot)
        usage.latest_use = max(usage.latest_use or 0.0, slot.entry.last_used)

    def used(self, slot: Slot) -> None:
        """One more use, which the slot's entry does not count yet."""
        usage = self._usage(slot)
        usage.uses += 1
        usage.reused_records += slot.entry.uses == 0

    def pinned(self, slot: Slot) -> None:
        """The slot, which is counted already, is pinned from now on, or no more."""
        self._usage(slot).count_pinned(slot, sign=1 if slot.pinned else -1)

    def usages(self, tenant: str | None) -> Iterator[Usage]:
        return (usage for usage in self._usages.values() if tenant in (None, usage.tenant))

    def forget(self, tenant: str, layout: bytes) -> None:
        """Drop the totals of a tenant's layout that holds nothing any more."""
        for kind in Kind:
            self._usages.pop((tenant, layout, kind), None)

    def _usage(self, slot: Slot) -> Usage:
        tenant, layout, kind, _ = slot.key
        usage = self._usages.get((tenant, layout, kind))
        if usage is None:
            usage = self._usages[tenant, layout, kind] = Usage(tenant=tenant, layout=layout, kind=kind)
        return usage
