"""What waits to be stored, within a bound of bytes: what is taken in, what gives way, what goes next. Pure."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcairn_client.records import Outgoing
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Kind, Layout

Ident = tuple[bytes, Kind, bytes]


class Item(NamedTuple):
    """One record that waits."""

    layout: Layout
    record: Outgoing
    codec: CodecName

    @property
    def ident(self) -> Ident:
        """One key, one content: what is equal here need not be stored twice."""
        return self.layout.fingerprint, self.record.kind, self.record.key

    @property
    def size_bytes(self) -> int:
        return memoryview(self.record.payload).nbytes

    @property
    def gives_way(self) -> bool:
        """State and windows give way to history: history without a state is of use, a state without history is not."""
        return self.record.kind is not Kind.HISTORY


@dataclass(slots=True)
class WaitingRecords:
    """First in, first out. Bytes that were taken still count, until they are released. Not thread-safe."""

    max_bytes: int
    held_bytes: int = 0
    dropped: int = 0
    _waiting: "OrderedDict[Ident, Item]" = field(default_factory=OrderedDict)
    _yielding: "OrderedDict[Ident, None]" = field(default_factory=OrderedDict)
    _taken: set[Ident] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being stored."""
        return not self._waiting and not self._taken

    def add(self, item: Item) -> bool:
        """Take a record in; True if it waits now because of this call, False for a duplicate or where there is no room.

        History makes room for itself: the newest waiting states and windows are dropped. Nothing else is.
        """
        if item.ident in self._waiting or item.ident in self._taken:
            return False
        if not self._make_room(item):
            self.dropped += 1
            return False
        self._waiting[item.ident] = item
        if item.gives_way:
            self._yielding[item.ident] = None
        self.held_bytes += item.size_bytes
        return True

    def take(self, *, at_most_bytes: int) -> list[Item]:
        """The oldest record, and those behind it that can go in the same body; they count as held until released."""
        batch: list[Item] = []
        size_bytes = 0
        while self._waiting:
            head = next(iter(self._waiting.values()))
            size_bytes += head.size_bytes
            if batch and (size_bytes > at_most_bytes or _body_of(head) != _body_of(batch[0])):
                break
            batch.append(self._remove(head.ident))
        self._taken.update(item.ident for item in batch)
        return batch

    def release(self, batch: list[Item]) -> None:
        """A batch that was taken is stored, or given up."""
        self._taken.difference_update(item.ident for item in batch)
        self.held_bytes -= sum(item.size_bytes for item in batch)

    def drop_all(self) -> int:
        """Give up everything that waits; returns how many records that were."""
        count = len(self._waiting)
        for ident in list(self._waiting):
            self.held_bytes -= self._remove(ident).size_bytes
        self.dropped += count
        return count

    def _make_room(self, item: Item) -> bool:
        over_bytes = self.held_bytes + item.size_bytes - self.max_bytes
        if over_bytes <= 0:
            return True
        if item.gives_way or over_bytes > self._yielding_bytes():
            return False
        while self.held_bytes + item.size_bytes > self.max_bytes:
            newest = next(reversed(self._yielding))
            self.held_bytes -= self._remove(newest).size_bytes
            self.dropped += 1
        return True

    def _yielding_bytes(self) -> int:
        return sum(self._waiting[ident].size_bytes for ident in self._yielding)

    def _remove(self, ident: Ident) -> Item:
        self._yielding.pop(ident, None)
        return self._waiting.pop(ident)


def _body_of(item: Item) -> tuple[bytes, CodecName]:
    """What has to be equal for two records to go in one body."""
    return item.layout.fingerprint, item.codec
