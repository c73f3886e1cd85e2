"""Tenancy: records by recency and what they are charged, of one tenant or of all. Pure, not thread-safe."""

from collections import OrderedDict
from itertools import takewhile

from kvcairn_protocol.layout import Kind
from kvcairn_storage.slot import Slot


class Tenancy:
    """Three orders of use, one a kind, oldest first.

    charged_bytes: records that are WRITING or PRESENT, by kind. surplus_bytes: what is about to be deleted on disk
    beyond what replaces it, and counts until it is.
    """

    def __init__(self) -> None:
        self.orders: dict[Kind, OrderedDict[Slot, None]] = {kind: OrderedDict() for kind in Kind}
        self.charged_bytes: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self.surplus_bytes = 0

    @property
    def total_bytes(self) -> int:
        """What counts against the quota, or the capacity."""
        return sum(self.charged_bytes.values()) + self.surplus_bytes

    def append(self, slot: Slot) -> None:
        """Put the slot at the recent end of its order, whether it was there or not."""
        order = self.orders[slot.key.kind]
        order[slot] = None
        order.move_to_end(slot)

    def restore(self, slot: Slot) -> None:
        """Put a slot that was to go back to the old end, behind those that were used still longer ago."""
        order = self.orders[slot.key.kind]
        older = list(takewhile(lambda other: other.sequence < slot.sequence, order))
        for each in (slot, *reversed(older)):
            order[each] = None
            order.move_to_end(each, last=False)

    def discard(self, slot: Slot) -> None:
        """Take the slot out of its order."""
        self.orders[slot.key.kind].pop(slot, None)

    def is_empty(self) -> bool:
        return not any(self.orders.values()) and not self.total_bytes
