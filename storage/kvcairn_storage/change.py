"""Change: one decision of the accounting on its way to the disk, and what the accounting answers instead of one."""

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvcairn_storage.slot import Slot
from kvcairn_storage.store import RecordKey


class Cause(StrEnum):
    """Why a record went."""

    EVICTED = "evicted"
    EXPIRED = "expired"
    DELETED = "deleted"
    QUARANTINED = "quarantined"
    PURGED = "purged"


class Shortage(StrEnum):
    """Why there is no room: the tenant's own quota, or the capacity of all, and nothing that may go."""

    QUOTA = "quota"
    FULL = "full"


@dataclass(slots=True, eq=False)
class Change:
    """One record to write or none, and those that go.

    surplus_bytes: what goes beyond what comes; charged until the change is settled, for if it fails it is still there.
    settled: resolves, outside any lock, once the accounting knows what the disk made of it; fails as the disk did.
    """

    added: Slot | None = None
    removed: dict[Slot, Cause] = field(default_factory=dict)
    settled: "Future[None]" = field(default_factory=Future)

    @property
    def surplus_bytes(self) -> int:
        if not self.removed:
            return 0
        added = self.added.charged_bytes if self.added else 0
        return max(0, sum(slot.charged_bytes for slot in self.removed) - added)

    def tenant_surplus_bytes(self) -> dict[str, int]:
        """The same for each tenant by itself, against its own quota."""
        if not self.removed:
            return {}
        removed: Counter[str] = Counter()
        for slot in self.removed:
            removed[slot.key.tenant] += slot.charged_bytes
        if self.added:
            removed[self.added.key.tenant] -= self.added.charged_bytes
        return {tenant: surplus for tenant, surplus in removed.items() if surplus > 0}

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.added is not None or bool(self.removed)

    @property
    def is_quarantine(self) -> bool:
        """Whether bad records go: these are served no more, even if the disk refuses to delete them."""
        return Cause.QUARANTINED in self.removed.values()

    def deletes(self) -> list[RecordKey]:
        """The keys to delete, in the order in which they were chosen."""
        return [slot.key for slot in self.removed]


class Wait(NamedTuple):
    """There will be room once this change, which is on its way, is settled: ask again then."""

    change: Change
