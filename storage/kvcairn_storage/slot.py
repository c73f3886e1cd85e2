"""Slot: one record in the accounting, with its phase and what it is charged."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from kvcairn_storage.store import Entry, RecordKey

if TYPE_CHECKING:
    from kvcairn_storage.change import Change

PAGE_BYTES = 4096
PAGE_HEADER_BYTES = 16
"""LMDB keeps a large value on a run of whole pages, the first of which starts with this many bytes of its own."""


class Phase(Enum):
    """Where a record stands between the decision and the disk. Only what is PRESENT is served."""

    WRITING = auto()
    PRESENT = auto()
    LEAVING = auto()
    GONE = auto()


def charge_bytes(entry: Entry) -> int:
    """What a record counts for: whole pages, with all that its value has beside the payload."""
    pages = -(-(PAGE_HEADER_BYTES + entry.value_bytes) // PAGE_BYTES)
    return pages * PAGE_BYTES


@dataclass(slots=True, eq=False)
class Slot:
    """One record. Compared and hashed by identity; changed by Space alone, under its owner's lock.

    sequence: the moment of the last use, comparable across tenants. holds: how many readers rely on it right now.
    pinned: whether a pin covers it, so that it is in no order of use. change: what is in flight while it is WRITING or
    LEAVING.
    """

    key: RecordKey
    entry: Entry
    charged_bytes: int = field(init=False)
    phase: Phase = Phase.WRITING
    sequence: int = 0
    holds: int = 0
    pinned: bool = False
    change: "Change | None" = None

    def __post_init__(self) -> None:
        self.charged_bytes = charge_bytes(self.entry)

    @property
    def busy(self) -> bool:
        """Whether somebody reads it or it is still being written, so that it may not be chosen to go."""
        return self.holds > 0 or self.phase is Phase.WRITING

    @property
    def stays(self) -> bool:
        """Whether it may not go with the block at its key."""
        return self.busy or self.pinned
