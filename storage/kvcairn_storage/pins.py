"""Pins: which records must stay, for whom, and how much room that takes. Pure: no I/O, no clock, no lock.

A pin names records by key, and keeps for each as much room as it took when it was pinned. One that is lost (deleted,
found bad) leaves that room behind, and is pinned again if it is stored again within it. What pins take thus changes
with the pins alone, and no limit of theirs is exceeded by a byte.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kvcairn_protocol.layout import Kind
from kvcairn_storage.store import RecordKey

PIN_SHARE = 0.25
"""All pins together keep at most this part of the capacity, so that the guaranteed shares of states and of history
(eviction.py) can be had whatever is pinned."""


class PinnedRecord(NamedTuple):
    """One record of a pin; charged_bytes: what it counted for when it was pinned."""

    kind: Kind
    key: bytes
    charged_bytes: int


@dataclass(frozen=True, slots=True)
class Pin:
    """Records of one tenant and layout that stay while the pin does. id: the tenant's own name for it."""

    tenant: str
    layout: bytes
    id: str
    records: tuple[PinnedRecord, ...]

    @property
    def charged_bytes(self) -> int:
        return sum(record.charged_bytes for record in self.records)

    def record_keys(self) -> list[RecordKey]:
        return [RecordKey(self.tenant, self.layout, record.kind, record.key) for record in self.records]


class Obstacle(StrEnum):
    """Why something cannot be pinned. Only NEVER stays so whatever happens to other pins."""

    ABSENT = "absent"
    NEVER = "never"
    QUOTA = "quota"
    FULL = "full"


class Pins:
    """The pins of one store. A record that several name counts once, and stays until the last of them is gone."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._pins: dict[tuple[str, str], Pin] = {}
        self._rooms: dict[RecordKey, list[int]] = {}
        self._tenant_bytes: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def find(self, tenant: str, pin_id: str) -> Pin | None:
        return self._pins.get((tenant, pin_id))

    def tenant_bytes(self, tenant: str) -> int:
        """What a tenant's pins take, each record once."""
        return self._tenant_bytes[tenant]

    def covers(self, key: RecordKey, *, charged_bytes: int) -> bool:
        """Whether a record of that size at that key is pinned."""
        rooms = self._rooms.get(key)
        return rooms is not None and charged_bytes <= max(rooms)

    def put(self, pin: Pin) -> Pin | None:
        """Add the pin, in place of the tenant's one of the same id; returns that."""
        old = self._pins.get((pin.tenant, pin.id))
        self._pins[pin.tenant, pin.id] = pin
        self._count(pin, sign=1)
        if old is not None:
            self._count(old, sign=-1)
        return old

    def remove(self, tenant: str, pin_id: str) -> Pin | None:
        """Take a pin away; returns it, None if there is none of that id."""
        old = self._pins.pop((tenant, pin_id), None)
        if old is not None:
            self._count(old, sign=-1)
        return old

    def try_put(self, pin: Pin, *, tenant_limit_bytes: int, limit_bytes: int) -> Pin | Obstacle | None:
        """`put`, unless it would take the tenant's pins, or all, beyond a limit; then nothing has changed."""
        if pin.charged_bytes > min(tenant_limit_bytes, limit_bytes):
            return Obstacle.NEVER
        old = self.put(pin)
        over_quota, over_limit = self.tenant_bytes(pin.tenant) > tenant_limit_bytes, self.total_bytes > limit_bytes
        if not (over_quota or over_limit):
            return old
        if old is None:
            self.remove(pin.tenant, pin.id)
        else:
            self.put(old)
        return Obstacle.QUOTA if over_quota else Obstacle.FULL

    def load(self, pins: Iterable[Pin], *, limit_bytes: int) -> None:
        """Take in the pins that were there when the store was closed, those that fit; the first ones first."""
        for pin in pins:
            self.try_put(pin, tenant_limit_bytes=limit_bytes, limit_bytes=limit_bytes)

    def _count(self, pin: Pin, *, sign: int) -> None:
        for key, record in zip(pin.record_keys(), pin.records, strict=True):
            rooms = self._rooms.setdefault(key, [])
            before_bytes = max(rooms, default=0)
            if sign > 0:
                rooms.append(record.charged_bytes)
            else:
                rooms.remove(record.charged_bytes)
            grown_bytes = max(rooms, default=0) - before_bytes
            self.total_bytes += grown_bytes
            self._tenant_bytes[pin.tenant] += grown_bytes
            if not rooms:
                del self._rooms[key]
        if not self._tenant_bytes[pin.tenant]:
            del self._tenant_bytes[pin.tenant]
