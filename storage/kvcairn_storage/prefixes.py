"""PrefixStore: prefix trees of records on a RecordStore, within a capacity; what a service needs, and no HTTP.

Decisions are made under one lock and never wait; disk work is done outside it. A record is served once it is
committed, and no longer from the moment on at which it was chosen to go.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial

from kvcairn_protocol.layout import Kind
from kvcairn_storage.change import Cause, Change
from kvcairn_storage.ciphers import PLAIN_VALUES, Ciphers
from kvcairn_storage.errors import StorageError, StoreUnreadable
from kvcairn_storage.hold import Hold
from kvcairn_storage.integrity import is_sound
from kvcairn_storage.pinning import Pinning, pin_limit_bytes
from kvcairn_storage.pins import Pin
from kvcairn_storage.purging import BATCH_RECORDS, Purging
from kvcairn_storage.puts import NewRecord, Outcome, PutResult, Putter
from kvcairn_storage.rewriting import Rewriting
from kvcairn_storage.shelf import Run
from kvcairn_storage.slot import Phase, Slot
from kvcairn_storage.space import Space
from kvcairn_storage.store import Entry, RecordKey, RecordStore
from kvcairn_storage.usage import Usage

__all__ = ["Hold", "NewRecord", "Outcome", "PrefixStore", "PutResult", "Run", "Usage"]

BATCH_USES = 4096
FLUSH_SECONDS = 20.0

_LOG = logging.getLogger(__name__)


class PrefixStore:
    """Every method may be called from any thread. Those that delete, put and verify wait for the disk or read it."""

    def __init__(
        self,
        records: RecordStore,
        *,
        capacity_bytes: int,
        clock: Callable[[], float] = time.time,
        pins: Iterable[Pin] = (),
        ciphers: Ciphers = PLAIN_VALUES,
    ) -> None:
        """Load every entry of `records` and evict what exceeds `capacity_bytes`; `close` closes `records` as well.

        pins: what was pinned when the store was closed, most important first; those that no longer fit are let go.
        ciphers: which new values `records` shall encrypt, and which values it can read; what it cannot is a miss.
        """
        self._records, self._ciphers = records, ciphers
        self._clock = clock
        self._lock = threading.Lock()
        self._space = Space(capacity_bytes=capacity_bytes)
        self._space.pins.load(pins, limit_bytes=pin_limit_bytes(capacity_bytes))
        self._space.load(self._noted(records.scan()))
        self._held_records = 0
        self._dirty: dict[RecordKey, Slot] = {}
        self._putter = Putter(records, self._space, self._lock, self._note_use, ciphers)
        self.rewriting = Rewriting(records, self._space, self._lock, partial(self._remove_now, cause=Cause.EVICTED))
        self.pins = Pinning(self._space, self._lock, clock, self._note_use)
        self.purging = Purging(self._space, self._lock, self._carry_out)
        self._closing = threading.Event()
        self._remove_in_batches(lambda: self._space.shrink(at_most_records=BATCH_RECORDS))
        self._flusher = threading.Thread(target=self._flush_until_closed, name="kvcairn-recency", daemon=True)
        self._flusher.start()

    @property
    def capacity_bytes(self) -> int:
        return self._space.capacity_bytes

    @property
    def charged_bytes(self) -> int:
        """What is charged now: whole pages, headers included; never more than capacity_bytes."""
        with self._lock:
            return self._space.charged_bytes

    @property
    def held_records(self) -> int:
        """How many records readers rely on right now; one that two rely on counts twice."""
        return self._held_records

    def put(self, records: Sequence[NewRecord], *, quota_bytes: int | None = None) -> "Future[list[PutResult]]":
        """Store verified records; the first writer of a key wins. Resolves once all that is stored is committed.

        Returns at once: deciding takes microseconds, and what is there already is read and verified by a thread of
        this store. The future fails with StoreUnreadable or StoreClosed only where the disk does; the caller leaves
        the data unchanged until it is done.
        """
        return self._putter.put(records, quota_bytes=quota_bytes, now=self._clock())

    def get(self, key: RecordKey) -> bytes | None:
        """A copy of a record, header and all; None if it is not there. Does not count as a use."""
        with self._lock:
            if self._served(key) is None:
                return None
        return self._records.get(key)

    @contextmanager
    def views(self, keys: Sequence[RecordKey]) -> "Iterator[list[memoryview | None]]":
        """Records without a copy, good inside the with block alone: see RecordStore. Does not count as a use."""
        served = self.exists(keys)
        with self._records.views(keys) as views:
            yield [view if is_served else None for view, is_served in zip(views, served, strict=True)]

    def exists(self, keys: Sequence[RecordKey]) -> list[bool]:
        """Which of these are there; does not count as a use."""
        with self._lock:
            return [self._served(key) is not None for key in keys]

    def entry(self, key: RecordKey) -> Entry | None:
        """A copy of what is known of a record."""
        with self._lock:
            slot = self._served(key)
            return slot.entry.copied() if slot else None

    def longest_run(self, *, tenant: str, layout: bytes, keys: Sequence[bytes], block_tokens: int) -> Run:
        """The run from the first key on in which key i stands at (i + 1) · block_tokens, and the states inside it.

        Answered from memory, in time linear in the run; does not count as a use.
        """
        with self._lock:
            shelf = self._space.shelf(tenant, layout)
            run = shelf.longest_run(keys, block_tokens=block_tokens) if shelf else Run(0, [])
            return self._readable(run, tenant, layout, keys, block_tokens) if self._ciphers.has_lost else run

    def hold(self, keys: Sequence[RecordKey]) -> Hold:
        """Keep records from being evicted or expired until the hold is released.

        They and the blocks before them are as fresh as if used now, though no use is counted: whoever makes room looks
        at the oldest first, and would have to pass by them each time.
        """
        now = self._clock()
        with self._lock:
            slots = [self._served(key) for key in keys]
            entries = [slot.entry.copied() if slot else None for slot in slots]
            held = [slot for slot in slots if slot is not None]
            self._held_records += len(held)
            for slot in held:
                slot.holds += 1
            self._note_use(self._space.use(held, now=now))
        return Hold(entries, partial(self._let_go, held))

    def touch(self, keys: Sequence[RecordKey]) -> int:
        """Count a use of each record that is there, and of the blocks before it; returns how many are there."""
        now = self._clock()
        with self._lock:
            slots = [slot for key in dict.fromkeys(keys) if (slot := self._space.present(key)) is not None]
            self._note_use(self._space.use(slots, now=now, counted=True))
        return len(slots)

    def delete(self, key: RecordKey) -> bool:
        """Delete one record alone, committed; whether it was there. Waits for one that is being written."""
        return self._remove_now([key], Cause.DELETED) == 1

    def drop(self, *, tenant: str, layout: bytes | None = None) -> int:
        """Delete all records of a tenant, or of one layout of it, committed, in batches; how many there were.

        What was counted of it is forgotten with it.
        """
        with self._lock:
            keys = [slot.key for slot in self._space.slots(tenant, layout)]
        batches = [keys[start : start + BATCH_RECORDS] for start in range(0, len(keys), BATCH_RECORDS)]
        dropped = sum(self._remove_now(batch, Cause.DELETED) for batch in batches)
        with self._lock:
            self._space.forget(tenant, layout)
        return dropped

    def expire(self, *, tenant: str, idle_seconds: float) -> int:
        """Delete a tenant's records that were not used for so long, leaves first; how many there were.

        A block stays while a descendant is alive or held, or a record at its key is held.
        """
        before = self._clock() - idle_seconds
        return self._remove_in_batches(lambda: self._space.expire(tenant, before=before, at_most_records=BATCH_RECORDS))

    def quarantine(self, key: RecordKey, *, verify: Callable[[bytes], bool] | None = None) -> bool:
        """Read a record again; if it is bad or unreadable, delete and count it, so that the next store replaces it.

        Returns whether it was bad. verify: a further check of the bytes, True if they are good; by default and before
        it, the header must be this key's and its entry's, and the checksum must hold. Where the disk refuses to delete
        it, that error is raised, and the record is served no more all the same.
        """
        with self._lock:
            slot = self._served(key)
        if slot is None or self._is_good(slot, verify):
            return False
        with self._lock:
            still_there = [slot] if slot.phase is Phase.PRESENT else []
            change = self._space.remove(still_there, Cause.QUARANTINED)
        return self._carry_out(change) == 1

    def usage(self, tenant: str | None = None) -> list[Usage]:
        """Totals by tenant, layout and kind, of one tenant or all."""
        with self._lock:
            return self._space.usage(tenant)

    def flush_uses(self) -> None:
        """Write what was used since the last call to the disk; a thread of this store does so every 20 seconds."""
        with self._lock:
            dirty, self._dirty = self._dirty, {}
        left = list(dirty.values())
        try:
            while left:
                self._records.note_use(self._current_uses(left[:BATCH_USES])).result()
                del left[:BATCH_USES]
        except StorageError:
            with self._lock:
                self._dirty = {slot.key: slot for slot in left} | self._dirty
            raise

    def check_integrity(self) -> list[str]:
        """What is wrong in the accounting or on the disk, one sentence each. Reads every record."""
        with self._lock:
            faults = self._space.faults()
        return faults + self._records.check_integrity()

    def close(self) -> None:
        """Write the recency, finish what is being written, close the record store. Closing twice is fine."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._flusher.join()
        self._putter.close()
        try:
            self.flush_uses()
        finally:
            self._records.close()

    def _noted(self, entries: Iterable[tuple[RecordKey, Entry]]) -> Iterator[tuple[RecordKey, Entry]]:
        for key, entry in entries:
            if entry.key_id:
                self._ciphers.note(entry.key_id)
            yield key, entry

    def _served(self, key: RecordKey) -> Slot | None:
        """The slot at a key if it can be served: it is there, and its value's key as well."""
        slot = self._space.present(key)
        return slot if slot is not None and self._ciphers.reads(slot.entry.key_id) else None

    def _readable(self, run: Run, tenant: str, layout: bytes, keys: Sequence[bytes], block_tokens: int) -> Run:
        """As much of a run as can be served."""
        places = [RecordKey(tenant, layout, Kind.HISTORY, key) for key in keys[: run.history_blocks]]
        blocks = next((at for at, place in enumerate(places) if self._served(place) is None), len(places))
        states = [at for at in run.state_tokens if at <= blocks * block_tokens]
        ends = (places[at // block_tokens - 1]._replace(kind=Kind.STATE) for at in states)
        return Run(blocks, [at for at, place in zip(states, ends, strict=True) if self._served(place) is not None])

    def _let_go(self, held: list[Slot]) -> None:
        with self._lock:
            self._held_records -= len(held)
            for slot in held:
                slot.holds -= 1
            held.clear()

    def _note_use(self, slots: Iterable[Slot]) -> None:
        """Remember, under the lock, whose recency the disk does not know."""
        self._dirty.update((slot.key, slot) for slot in slots)

    def _current_uses(self, slots: Sequence[Slot]) -> dict[RecordKey, tuple[float, int]]:
        with self._lock:
            there = [slot for slot in slots if slot.phase is Phase.PRESENT]
            return {slot.key: (slot.entry.last_used, slot.entry.uses) for slot in there}

    def _is_good(self, slot: Slot, verify: Callable[[bytes], bool] | None) -> bool:
        try:
            data = self._records.get(slot.key)
        except StoreUnreadable:
            return False
        return data is not None and is_sound(slot.key, slot.entry, data) and (verify is None or verify(data))

    def _remove_now(self, keys: Sequence[RecordKey], cause: Cause) -> int:
        self._await_writes(keys)
        with self._lock:
            slots = [slot for key in keys if (slot := self._space.present(key)) is not None]
            change = self._space.remove(slots, cause)
        return self._carry_out(change)

    def _remove_in_batches(self, decide: Callable[[], Change]) -> int:
        total = 0
        while True:
            with self._lock:
                change = decide()
            if not change:
                return total
            total += self._carry_out(change)

    def _carry_out(self, change: Change) -> int:
        """Delete on the disk what a change takes out, and settle it."""
        if not change:
            return 0
        self._putter.carry_out(change).result()
        return len(change.removed)

    def _await_writes(self, keys: Sequence[RecordKey]) -> None:
        """Wait until none of these is on its way to the disk."""
        with self._lock:
            changes = {slot.change for key in keys if (slot := self._space.find(key)) is not None and slot.change}
        wait(change.settled for change in changes)

    def _flush_until_closed(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            try:
                self.flush_uses()
            except StorageError:
                _LOG.exception("the recency of records could not be written; it will be tried again")
