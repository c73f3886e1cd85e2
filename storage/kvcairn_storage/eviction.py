"""Which record goes next when space is short. Pure: it names victims, and its caller removes them one by one.

Window records go first: only strategy full needs them, and most are never read. Then the least recently used goes,
state or history leaf, within guarantees (docs/decisions/eviction.md): history keeps at least half of a budget and
states at least a tenth. A record may always displace its own kind; it takes from the other only what leaves that at or
above its share; and a kind below its own share takes from the other first.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvcairn_protocol.layout import Kind
from kvcairn_storage.slot import Slot
from kvcairn_storage.tenancy import Tenancy

SHARES = {Kind.HISTORY: 0.5, Kind.STATE: 0.1, Kind.WINDOW: 0.0}


class Candidates:
    """Records of one kind that may go, oldest first, across some tenants.

    One pass over the orders, which nobody may change meanwhile; what its caller takes out of the tree between two
    calls is seen, so that a parent follows the last of its children.
    """

    def __init__(self, tenancies: Sequence[Tenancy], kind: Kind, may_go: Callable[[Slot], bool]) -> None:
        self._may_go = may_go
        orders = [self._walk(tenancy, kind) for tenancy in tenancies]
        self._merged = orders[0] if len(orders) == 1 else heapq.merge(*orders, key=lambda slot: slot.sequence)
        self._next: Slot | None = None

    def oldest(self) -> Slot | None:
        """The next to go, or None; the same one again for as long as it may go."""
        while self._next is None or not self._may_go(self._next):
            self._next = next(self._merged, None)
            if self._next is None:
                return None
        return self._next

    def _walk(self, tenancy: Tenancy, kind: Kind) -> Iterator[Slot]:
        return (slot for slot in tenancy.orders[kind] if self._may_go(slot))


class Budget:
    """A capacity or a quota, as victims are chosen for it.

    limit_bytes: the whole. tenancies: whose records count against it, the incoming one included.
    """

    def __init__(self, limit_bytes: int, tenancies: Sequence[Tenancy], candidates: Mapping[Kind, Candidates]) -> None:
        self._limit_bytes = limit_bytes
        self._tenancies = tenancies
        self._candidates = candidates

    def victim(self, incoming: Kind | None) -> Slot | None:
        """The record that must go next for an incoming one (None: for nobody, to fit at all); None if nothing may."""
        window = self._candidates[Kind.WINDOW].oldest()
        if window is not None:
            return window
        allowed = [slot for kind in (Kind.STATE, Kind.HISTORY) if (slot := self._allowed(kind, incoming)) is not None]
        if incoming is not None and self._below_share(incoming):
            allowed = [slot for slot in allowed if slot.key.kind is not incoming] or allowed
        return min(allowed, key=lambda slot: slot.sequence, default=None)

    def _allowed(self, kind: Kind, incoming: Kind | None) -> Slot | None:
        slot = self._candidates[kind].oldest()
        if slot is None or incoming is None or kind is incoming:
            return slot
        stays = self._used_bytes(kind) - slot.charged_bytes
        return slot if stays >= SHARES[kind] * self._limit_bytes else None

    def _below_share(self, kind: Kind) -> bool:
        return self._used_bytes(kind) <= SHARES[kind] * self._limit_bytes

    def _used_bytes(self, kind: Kind) -> int:
        return sum(tenancy.charged_bytes[kind] for tenancy in self._tenancies)
