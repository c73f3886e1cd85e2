"""Putter: how records get in. Each is decided alone, so that a bad one never fails its neighbours."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from kvcairn_protocol.record import Header
from kvcairn_storage.change import Cause, Change, Shortage, Wait
from kvcairn_storage.ciphers import PLAIN_VALUES, Ciphers
from kvcairn_storage.errors import StoreClosed, StoreFull, StoreUnreadable
from kvcairn_storage.integrity import is_sound
from kvcairn_storage.slot import Phase, Slot, charge_bytes
from kvcairn_storage.space import Space
from kvcairn_storage.store import UNKNOWN_WRITER, Bytes, Entry, Put, RecordKey, RecordStore

VERIFYING_THREADS = 2
MAX_REFUSALS = 3
"""So often is room made for a record that the disk refuses; then it is answered `full`."""
MAX_ATTEMPTS = 1000
"""A record that was decided so often, always to find its room taken by others, is answered `full`."""


class NewRecord(NamedTuple):
    """A record to store, verified by the caller. block_tokens: 0 for unchained layouts.

    data: the header and payload as they travelled, in parts, which are joined in order. writer: see Entry.
    """

    tenant: str
    header: Header
    block_tokens: int
    data: Sequence[Bytes]
    writer: str = UNKNOWN_WRITER

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.tenant, self.header.fingerprint, self.header.kind, self.header.key)


class Outcome(StrEnum):
    """What became of one record."""

    STORED = "stored"
    PRESENT = "present"
    PARENT = "parent"
    CONFLICT = "conflict"
    QUOTA = "quota"
    FULL = "full"


class PutResult(NamedTuple):
    """can_ever_fit: False where the record alone is larger than the quota or the capacity."""

    outcome: Outcome
    can_ever_fit: bool = True


_Write = tuple[int, Change]
"""The index of a record in its batch, and the change that brings it in."""


class _Batch:
    """What is known of one call of `put`; changed under the owner's lock.

    held: slots of this batch, busy until it is done, so that no record of it displaces another. attempts: how often
    each was decided; refusals: how often the disk had no room for it.
    """

    def __init__(
        self, records: Sequence[NewRecord], quota_bytes: int | None, now: float, key_of: Callable[[str], bytes]
    ) -> None:
        self.puts = [Put(record.key, _new_entry(record, now, key_of(record.tenant)), record.data) for record in records]
        self.quota_bytes = quota_bytes
        self.now = now
        self.results: dict[int, PutResult] = {}
        self.failure: BaseException | None = None
        self.held: list[Slot] = []
        self.attempts = [0] * len(records)
        self.refusals = [0] * len(records)
        self.left = len(records)
        self.done: Future[list[PutResult]] = Future()
        self.done.set_running_or_notify_cancel()  # from here on nobody can cancel it under the store

    def hold(self, slot: Slot) -> None:
        slot.holds += 1
        self.held.append(slot)

    def announce(self) -> None:
        """Resolve the future; outside the lock, once nothing is left."""
        if self.failure is not None:
            self.done.set_exception(self.failure)
        else:
            self.done.set_result([result for _, result in sorted(self.results.items())])


class Putter:
    """Decides under its owner's lock, writes outside it, and settles what was decided when the disk has answered."""

    def __init__(
        self,
        records: RecordStore,
        space: Space,
        lock: threading.Lock,
        note_use: Callable[[Iterable[Slot]], None],
        ciphers: Ciphers = PLAIN_VALUES,
    ) -> None:
        self._records = records
        self._ciphers = ciphers
        self._space = space
        self._lock = lock
        self._note_use = note_use
        self._verifiers = ThreadPoolExecutor(VERIFYING_THREADS, "kvcairn-verify")

    def put(self, records: Sequence[NewRecord], *, quota_bytes: int | None, now: float) -> "Future[list[PutResult]]":
        """See PrefixStore.put."""
        batch = _Batch(records, quota_bytes, now, self._ciphers.writes_with)
        if records:
            self._decide_all(batch)
        else:
            batch.announce()
        return batch.done

    def carry_out(self, change: Change) -> "Future[None]":
        """Delete what a change takes out; returns the future that says when it is settled."""
        self._submit([], change.deletes()).add_done_callback(lambda written: self._settle([change], written))
        return change.settled

    def close(self) -> None:
        """Finish what is being verified; whatever would have to be verified later fails with StoreClosed."""
        self._verifiers.shutdown(wait=True)

    def _submit(self, puts: Sequence[Put], deletes: Sequence[RecordKey]) -> "Future[None]":
        try:
            return self._records.write(puts, deletes)
        except Exception as error:  # whatever it is, what was decided must not stay on its way for ever
            written: Future[None] = Future()
            written.set_exception(error)
            return written

    def _settle(self, changes: Sequence[Change], written: "Future[None]") -> None:
        """The disk has answered: let the accounting know, then those who wait."""
        error = written.exception()
        with self._lock:
            for change in changes:
                if error is None or change.is_quarantine:
                    self._space.commit(change)
                else:
                    self._space.undo(change)
        for change in changes:
            if error is None:
                change.settled.set_result(None)
            else:
                change.settled.set_exception(error)

    def _decide_all(self, batch: _Batch) -> None:
        """Decide on a new batch, and write what is new of it in one go: a commit costs a sync, whatever it holds."""
        with self._lock:
            steps = [self._choose(batch, index) for index in range(len(batch.puts))]
            self._renew(batch)
        writes = [(index, step) for index, step in enumerate(steps) if isinstance(step, Change)]
        if writes:
            self._write(batch, writes)
        for index, step in enumerate(steps):
            if not isinstance(step, Change):
                self._act(batch, index, step)

    def _decide(self, batch: _Batch, index: int) -> None:
        """Take one record a step further, once what it waited for is settled."""
        with self._lock:
            step = self._choose(batch, index)
        self._act(batch, index, step)

    def _act(self, batch: _Batch, index: int, step: PutResult | Change | Slot | Wait) -> None:
        """Answer a record, write it, verify what is there, or wait for another's write."""
        if isinstance(step, Wait):
            step.change.settled.add_done_callback(lambda _: self._decide(batch, index))
        elif isinstance(step, PutResult):
            self._answer(batch, index, step)
        elif isinstance(step, Change):
            self._write(batch, [(index, step)])
        else:
            self._verify_later(batch, index, step)

    def _choose(self, batch: _Batch, index: int) -> PutResult | Change | Slot | Wait:
        put = batch.puts[index]
        batch.attempts[index] += 1
        if batch.attempts[index] > MAX_ATTEMPTS:
            return PutResult(Outcome.FULL)
        slot = self._space.find(put.key)
        if slot is None:
            return self._reserve(batch, put.key, put.entry)
        if slot.phase is Phase.LEAVING:
            return Wait(_in_flight(slot))
        if (slot.entry.position, slot.entry.parent) != (put.entry.position, put.entry.parent):
            return PutResult(Outcome.CONFLICT)
        if slot.phase is Phase.WRITING:
            return Wait(_in_flight(slot))
        batch.hold(slot)
        return slot

    def _reserve(self, batch: _Batch, key: RecordKey, entry: Entry) -> PutResult | Change | Wait:
        if self._space.misplaces(key, entry):
            return PutResult(Outcome.PARENT)
        if self._space.contradicts(key, entry):
            return PutResult(Outcome.CONFLICT)
        charged_bytes = charge_bytes(entry)
        if batch.quota_bytes is not None and charged_bytes > batch.quota_bytes:
            return PutResult(Outcome.QUOTA, can_ever_fit=False)
        if charged_bytes > self._space.capacity_bytes:
            return PutResult(Outcome.FULL, can_ever_fit=False)
        decision = self._space.reserve(key, entry, quota_bytes=batch.quota_bytes)
        if isinstance(decision, Shortage):
            return PutResult(Outcome(decision.value))
        if isinstance(decision, Change) and decision.added is not None:
            batch.hold(decision.added)
        return decision

    def _write(self, batch: _Batch, writes: Sequence[_Write]) -> None:
        puts = [batch.puts[index] for index, _ in writes]
        deletes = [key for _, change in writes for key in change.deletes()]
        self._submit(puts, deletes).add_done_callback(partial(self._written, batch, writes))

    def _written(self, batch: _Batch, writes: Sequence[_Write], written: "Future[None]") -> None:
        """Answer what was written; what failed together is tried alone, so that it fails alone."""
        error = written.exception()
        if error is not None and len(writes) > 1:
            for write in writes:
                self._write(batch, [write])
            return
        self._settle([change for _, change in writes], written)
        for index, _ in writes:
            if error is None:
                self._answer(batch, index, PutResult(Outcome.STORED))
            elif isinstance(error, StoreFull):
                self._shed(batch, index)
            else:
                self._answer(batch, index, error)

    def _shed(self, batch: _Batch, index: int) -> None:
        """The disk is fuller than the capacity says: evict for this record and try again, a few times."""
        put = batch.puts[index]
        with self._lock:
            batch.refusals[index] += 1
            need_bytes = batch.refusals[index] * charge_bytes(put.entry)
            tries_left = batch.refusals[index] <= MAX_REFUSALS
            change = self._space.shed(put.key, need_bytes=need_bytes) if tries_left else Change()
        if change:
            self.carry_out(change).add_done_callback(lambda _: self._decide(batch, index))
        else:
            self._answer(batch, index, PutResult(Outcome.FULL))

    def _verify_later(self, batch: _Batch, index: int, slot: Slot) -> None:
        try:
            self._verifiers.submit(self._verify, batch, index, slot)
        except RuntimeError:
            self._answer(batch, index, StoreClosed("the store was closed before a record in it could be verified"))

    def _verify(self, batch: _Batch, index: int, slot: Slot) -> None:
        """Answer a record that is there already; replace it if what is there is bad."""
        try:
            sound = reads_sound(self._records, slot)
        except Exception as error:  # whatever it is, the batch ends, and ends with it
            self._answer(batch, index, error)
            return
        if sound:
            self._answer(batch, index, PutResult(Outcome.PRESENT))
            return
        with self._lock:
            there = [slot] if slot.phase is Phase.PRESENT else []
            change = self._space.remove(there, Cause.QUARANTINED)
        if change:
            self.carry_out(change).add_done_callback(lambda _: self._decide(batch, index))
        else:
            self._decide(batch, index)

    def _answer(self, batch: _Batch, index: int, answer: PutResult | BaseException) -> None:
        with self._lock:
            if isinstance(answer, PutResult):
                batch.results[index] = answer
            else:
                batch.failure = answer
            batch.left -= 1
            if batch.left:
                return
            if max(batch.attempts) > 1:  # some came in after the pass that `put` makes
                self._renew(batch)
            for slot in batch.held:
                slot.holds -= 1
        batch.announce()

    def _renew(self, batch: _Batch) -> None:
        """Storing is a use, of ancestors too: one pass a batch keeps it linear."""
        live = [slot for slot in batch.held if slot.phase in (Phase.WRITING, Phase.PRESENT)]
        self._note_use(self._space.use(live, now=batch.now))


def reads_sound(records: RecordStore, slot: Slot) -> bool:
    """Whether the record can be read and is whole; StoreClosed passes, since it says nothing of the record."""
    try:
        data = records.get(slot.key)
    except StoreUnreadable:
        return False
    return data is not None and is_sound(slot.key, slot.entry, data)


def _in_flight(slot: Slot) -> Change:
    if slot.change is None:
        raise AssertionError(f"{slot} is {slot.phase.name} without a change on its way")
    return slot.change


def _new_entry(record: NewRecord, now: float, key_id: bytes) -> Entry:
    header = record.header
    return Entry(
        position=header.position,
        parent=header.parent,
        block_tokens=record.block_tokens,
        raw_bytes=header.raw_bytes,
        stored_bytes=header.stored_bytes,
        created=now,
        last_used=now,
        writer=record.writer,
        key_id=key_id,
    )
