"""EntryStore: a record store that keeps what is known of records and not their bytes, and watches what it is told.

An hour of V4-Flash would take 340 GB; what a PrefixStore decides depends on sizes alone. The sums and rules here share
no code with those they check.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from kvcairn_protocol.layout import Kind
from kvcairn_storage.store import Entry, Put, RecordKey

PAGE_BYTES, OVERHEAD_BYTES = 4096, 16 + 128
LEAST_HISTORY = 0.5
"""What history keeps of the capacity once it has reached it (docs/decisions/eviction.md)."""


class NoPayload(RuntimeError):
    """Somebody asked for bytes that were never kept."""


def pages_bytes(payload_bytes: int) -> int:
    """What a record of this payload takes on a disk of whole pages, headers included."""
    return -(-(OVERHEAD_BYTES + payload_bytes) // PAGE_BYTES) * PAGE_BYTES


class EntryStore:
    """A RecordStore without payloads, of one tenant and layout; every write is committed at once.

    One thread writes at a time. faults: what a write left behind that a PrefixStore promises never to leave: more than
    the capacity, a block without its parent, a state without its block, history below the share that it had reached.
    kept_bytes: by kind, whole pages. peak_bytes: the most that was ever kept.
    """

    def __init__(self, *, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: dict[RecordKey, Entry] = {}
        self._children: Counter[bytes] = Counter()
        self._blocks: Counter[bytes] = Counter()
        self._history_reached_its_share = False
        self.kept_bytes: Counter[Kind] = Counter()
        self.peak_bytes = 0
        self.faults: list[str] = []
        self._arrived: list[Put] = []

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        for key in deletes:
            self._drop(key)
        for put in puts:
            self._drop(put.key)
            self._keep(put.key, put.entry.copied())
        self._arrived += puts
        self._watch_sums()
        for key in deletes:
            self._watch_departure(key)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def get(self, key: RecordKey) -> bytes | None:
        if key not in self._entries:
            return None
        raise NoPayload(f"the bytes of {key} were not kept")

    def views(self, keys: Iterable[RecordKey]) -> "AbstractContextManager[list[memoryview | None]]":
        raise NoPayload(f"the bytes of {list(keys)} were not kept")

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        return iter([(key, entry.copied()) for key, entry in self._entries.items()])

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        for key, (last_used, count) in uses.items():
            if key in self._entries:
                self._entries[key].last_used, self._entries[key].uses = last_used, count
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def check_integrity(self) -> list[str]:
        return list(self.faults)

    def close(self) -> None:
        pass

    def settle(self) -> None:
        """Look at what was stored since the last call, now that nothing of it is on its way.

        Of one call of `put` a child may be committed before its parent: each record is decided alone.
        """
        for put in self._arrived:
            if put.key in self._entries:
                self._watch_arrival(put)
        self._arrived.clear()

    def _keep(self, key: RecordKey, entry: Entry) -> None:
        self._entries[key] = entry
        self._count(key, entry, sign=1)

    def _drop(self, key: RecordKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count(key, entry, sign=-1)

    def _count(self, key: RecordKey, entry: Entry, *, sign: int) -> None:
        self.kept_bytes[key.kind] += sign * pages_bytes(entry.stored_bytes)
        if key.kind is Kind.HISTORY:
            self._blocks[key.key[:16]] += sign
            self._children[entry.parent] += sign

    def _watch_sums(self) -> None:
        total, history = self.kept_bytes.total(), self.kept_bytes[Kind.HISTORY]
        self.peak_bytes = max(self.peak_bytes, total)
        if total > self._capacity_bytes:
            self.faults.append(f"{total:,} bytes are kept within a capacity of {self._capacity_bytes:,}")
        least = LEAST_HISTORY * self._capacity_bytes
        if self._history_reached_its_share and history < least:
            self.faults.append(f"history had {least:,.0f} bytes, half of the capacity, and was driven to {history:,}")
        self._history_reached_its_share = self._history_reached_its_share or history >= least

    def _watch_arrival(self, put: Put) -> None:
        key, entry = put.key, put.entry
        if entry.position > entry.block_tokens and not self._blocks[entry.parent]:
            self.faults.append(f"{key.kind.label} {key.key.hex()} stands where its parent does not")
        if key.kind is Kind.STATE and key._replace(kind=Kind.HISTORY) not in self._entries:
            self.faults.append(f"state {key.key.hex()} stands where its block does not")

    def _watch_departure(self, key: RecordKey) -> None:
        if key.kind is not Kind.HISTORY or key in self._entries:
            return
        if self._children[key.key[:16]]:
            self.faults.append(f"history {key.key.hex()} went and left a child behind")
        if key._replace(kind=Kind.STATE) in self._entries:
            self.faults.append(f"history {key.key.hex()} went and left its state behind")
