"""Which record goes next when space is short. Pure: it names victims, and its caller removes them one by one.

Window records go first: only strategy full needs them, and most are never read. Then the least recently used goes,
state or history leaf, within guarantees (docs/decisions/eviction.md): history keeps at least half of a budget and
states at least a tenth. A record may always displace its own kind; it takes from the other only what leaves that at or
above its share; and a kind below its own share takes from the other first.
"""

from collections.abc import Callable, Iterable

from kvcairn_protocol.layout import Kind
from kvcairn_storage.slot import Slot
from kvcairn_storage.tenancy import Tenancy

SHARES = {Kind.HISTORY: 0.5, Kind.STATE: 0.1, Kind.WINDOW: 0.0}


class Candidates:
    """Records of one kind that may go, oldest first.

    One pass over an order of use, which nobody may change meanwhile; what its caller takes out of the tree between two
    calls is seen, so that a parent follows the last of its children.
    """

    def __init__(self, order: Iterable[Slot], may_go: Callable[[Slot], bool]) -> None:
        self._may_go = may_go
        self._order = iter(order)
        self._next: Slot | None = None

    def oldest(self) -> Slot | None:
        """The next to go, or None; the same one again for as long as it may go."""
        while self._next is None or not self._may_go(self._next):
            self._next = next(self._order, None)
            if self._next is None:
                return None
        return self._next


class Budget:
    """A capacity or a quota, as victims are chosen for it.

    limit_bytes: the whole. tenancy: whose records count against it, the incoming one included.
    """

    def __init__(self, limit_bytes: int, tenancy: Tenancy, may_go: Callable[[Slot], bool]) -> None:
        self._limit_bytes = limit_bytes
        self._charged_bytes = tenancy.charged_bytes
        self._candidates = {kind: Candidates(order, may_go) for kind, order in tenancy.orders.items()}

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
        stays = self._charged_bytes[kind] - slot.charged_bytes
        return slot if stays >= SHARES[kind] * self._limit_bytes else None

    def _below_share(self, kind: Kind) -> bool:
        return self._charged_bytes[kind] <= SHARES[kind] * self._limit_bytes
