"""Charges: how many bytes count, by kind and tenant, and what the changes on their way will free. Pure."""

from collections.abc import Iterable

from kvcairn_storage.change import Change, Wait
from kvcairn_storage.slot import Slot
from kvcairn_storage.tenancy import Tenancy


class Charges:
    """The sums of one store. What a change takes out beyond what it adds counts until it is settled."""

    def __init__(self) -> None:
        self.tenancies: dict[str, Tenancy] = {}
        self.everybody = Tenancy()
        self._in_flight: dict[Change, None] = {}

    @property
    def total_bytes(self) -> int:
        """Everything that counts against the capacity right now."""
        return self.everybody.total_bytes

    def tenancy(self, tenant: str) -> Tenancy:
        """The tenant's own part, made when it is first asked for."""
        found = self.tenancies.get(tenant)
        if found is None:
            found = self.tenancies[tenant] = Tenancy()
        return found

    def add(self, slot: Slot) -> None:
        for tenancy in self._of(slot):
            tenancy.charged_bytes[slot.key.kind] += slot.charged_bytes

    def take(self, slot: Slot) -> None:
        for tenancy in self._of(slot):
            tenancy.charged_bytes[slot.key.kind] -= slot.charged_bytes

    def append(self, slot: Slot) -> None:
        """Make the slot the most recently used; a pinned one is in no order, so that nobody has to pass by it."""
        if slot.pinned:
            return
        for tenancy in self._of(slot):
            tenancy.append(slot)

    def discard(self, slot: Slot) -> None:
        """Take the slot out of the orders of use."""
        for tenancy in self._of(slot):
            tenancy.discard(slot)

    def restore(self, slot: Slot) -> None:
        """Put a slot that was to go back where it was in the orders of use."""
        if slot.pinned:
            return
        for tenancy in self._of(slot):
            tenancy.restore(slot)

    def start(self, change: Change) -> None:
        """A change goes to the disk: its surplus counts from now on."""
        self._in_flight[change] = None
        self._count_surplus(change, sign=1)

    def settle(self, change: Change) -> None:
        """The disk has answered."""
        del self._in_flight[change]
        self._count_surplus(change, sign=-1)

    def room_to_come(self, need_bytes: int, *, tenant: str | None = None) -> Wait | None:
        """The last change to wait for, if those on their way free as much (of one tenant's own) beyond their own need.

        Without this, a burst of small records would each displace a large one while the first is still being deleted.
        """
        counted = self.everybody if tenant is None else self.tenancy(tenant)
        if counted.surplus_bytes < need_bytes:
            return None
        coming_bytes = 0
        for change in self._in_flight:
            surplus = change.surplus_bytes if tenant is None else change.tenant_surplus_bytes().get(tenant, 0)
            coming_bytes += surplus
            if surplus and coming_bytes >= need_bytes:
                return Wait(change)
        return None

    def faults(self, slots: list[Slot]) -> list[str]:
        """What breaks the identity: all that is charged is among these slots, or surplus of a change on its way."""
        surplus_bytes = sum(change.surplus_bytes for change in self._in_flight)
        loose = sum(not slot.pinned for slot in slots)
        by_tenant = sum(sum(tenancy.charged_bytes.values()) for tenancy in self.tenancies.values())
        triples = [
            ("bytes charged", self.total_bytes, sum(slot.charged_bytes for slot in slots) + surplus_bytes),
            ("bytes charged to tenants", by_tenant, sum(self.everybody.charged_bytes.values())),
            ("records by recency", _ordered([self.everybody]), loose),
            ("records of tenants by recency", _ordered(self.tenancies.values()), loose),
        ]
        return [f"{name}: {sums} by the sums, {right} by the records" for name, sums, right in triples if sums != right]

    def _of(self, slot: Slot) -> tuple[Tenancy, Tenancy]:
        return self.everybody, self.tenancy(slot.key.tenant)

    def _count_surplus(self, change: Change, *, sign: int) -> None:
        self.everybody.surplus_bytes += sign * change.surplus_bytes
        for tenant, surplus_bytes in change.tenant_surplus_bytes().items():
            self.tenancies[tenant].surplus_bytes += sign * surplus_bytes


def _ordered(tenancies: Iterable[Tenancy]) -> int:
    return sum(len(order) for tenancy in tenancies for order in tenancy.orders.values())
