"""One upload: parse, verify and store records while the body still arrives.

At most one group of an upload is being committed at a time, and the next gathers behind it, so that a record's parent
from the same body is in the store before the record is checked against it. Memory is lent by the budget all uploads
share; an upload that must wait for it first gives back everything it holds. A buffer goes back to the pool only when
nobody can read from it any more: at the end of its commit, even where the upload has ended before.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcairn_protocol.errors import Reason, RecordError
from kvcairn_protocol.messages import RECORDS_TYPE, Rejected, StoreAnswer
from kvcairn_service.errors import Malformed, NoSpace, TooLarge
from kvcairn_service.receive import Announced, Body, Received, RecordReader
from kvcairn_service.state import Service
from kvcairn_service.tenants import KeptTenant
from kvcairn_storage.prefixes import NewRecord, Outcome, PutResult

RECORD_TYPES = (RECORDS_TYPE, "application/octet-stream")

GROUP_BYTES = 32 << 20
"""No more than this gathers behind a group that is being committed: then the body waits."""

GROUP_RECORDS = 512
"""Nor more than this many, however small: the loop decides on them in one go, and others wait meanwhile."""

START_BYTES = 8 << 20
"""What must have gathered before an idle disk is given work: a commit costs a sync, whatever it holds."""

VERIFY_ON_LOOP_BYTES = 4 << 20
"""Hashing this much takes less than a hop to a thread and back, and leaves the bytes in the cache."""

_REASONS: dict[Outcome, Reason] = {
    Outcome.PARENT: "parent",
    Outcome.CONFLICT: "conflict",
    Outcome.QUOTA: "quota",
    Outcome.FULL: "full",
}


@dataclass(slots=True)
class Tally:
    """What became of the records so far. no_room: of those that found none, whether each could ever fit."""

    stored: int = 0
    present: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    no_room: list[bool] = field(default_factory=list)

    def refuse(self, index: int, key: str | None, reason: Reason) -> None:
        self.rejected.append(Rejected(index=index, key=key, reason=reason))

    def note(self, received: Received, result: PutResult) -> None:
        """Count one record's outcome."""
        if result.outcome is Outcome.STORED:
            self.stored += 1
        elif result.outcome is Outcome.PRESENT:
            self.present += 1
        else:
            self.refuse(received.index, received.header.key.hex(), _REASONS[result.outcome])
        if result.outcome in (Outcome.QUOTA, Outcome.FULL):
            self.no_room.append(result.can_ever_fit)

    def answer(self) -> StoreAnswer:
        """The answer; TooLarge or NoSpace where nothing landed, and for want of room."""
        rejected = sorted(self.rejected, key=lambda each: each.index)
        answer = StoreAnswer(stored=self.stored, present=self.present, rejected=rejected)
        if not self.no_room or self.stored or self.present:
            return answer
        members = answer.model_dump(mode="json")
        if any(self.no_room):
            raise NoSpace("nothing was stored: nothing may be evicted for it now", members=members)
        raise TooLarge("nothing was stored: each record is larger than the quota or the capacity", members=members)


@dataclass(slots=True, kw_only=True)
class Upload:
    """One upload of a tenant's. To be used once, from the event loop.

    writer: what is remembered with its records (see Caller). _held: buffers that no commit has taken over, by their
    records' index.
    """

    service: Service
    tenant: KeptTenant
    writer: str
    tally: Tally = field(default_factory=Tally)
    _held: dict[int, memoryview] = field(default_factory=dict)
    _group: list[Received] = field(default_factory=list)
    _group_bytes: int = 0
    _committing: "asyncio.Task[None] | None" = None

    async def run(self, body: Body) -> StoreAnswer:
        """Store what `body` brings; complete records stand whatever comes after them.

        Malformed: an empty body. TooLarge, NoSpace: nothing landed for want of room. What `body` raises goes through,
        after everything that was complete has been committed.
        """
        try:
            await self._take_all(self._reader(body))
        finally:
            await self._settle()
        return self.tally.answer()

    def _reader(self, body: Body) -> RecordReader:
        layouts, tenant_id = self.service.layouts, self.tenant.id
        return RecordReader(
            body,
            lambda fingerprint: layouts.find(tenant_id, fingerprint),
            self.service.counters.note_received,
            max_record_bytes=self.service.settings.max_record_bytes,
            max_records=self.service.settings.max_keys,
        )

    async def _take_all(self, reader: RecordReader) -> None:
        while (found := await reader.next()) is not None:
            whole = await reader.fill(found, await self._borrow(found)) if isinstance(found, Announced) else found
            if isinstance(whole, Received):
                await self._accept(whole)
            else:
                self.tally.refuse(whole.index, whole.key, whole.reason)
        if not reader.has_begun:
            raise Malformed("the body is empty; it holds one record or more")

    async def _borrow(self, announced: Announced) -> memoryview:
        size_bytes, budget = announced.header.record_bytes, self.service.budget
        if not budget.try_acquire(size_bytes, tenant=self.tenant.id):
            await self._commit_all()
            await budget.acquire(size_bytes, tenant=self.tenant.id)
        self._held[announced.index] = budget.buffers.take(size_bytes)
        return self._held[announced.index]

    async def _accept(self, received: Received) -> None:
        try:
            await self._verify(received)
        except RecordError as error:
            self.tally.refuse(received.index, received.header.key.hex(), error.reason)
            self._give_back(self._held.pop(received.index))
            return
        self._group.append(received)
        self._group_bytes += len(received.data)
        if self._is_due:
            await self._commit_next()

    async def _verify(self, received: Received) -> None:
        if not received.is_raw:
            await self.service.decode(self.tenant.id, received.verify)
        elif len(received.data) > VERIFY_ON_LOOP_BYTES:
            await asyncio.to_thread(received.verify)
        else:
            received.verify()

    @property
    def _is_due(self) -> bool:
        """Whether enough has gathered for the disk as it is: idle, or busy with the group before."""
        is_idle = self._committing is None or self._committing.done()
        return self._group_bytes >= (START_BYTES if is_idle else GROUP_BYTES) or len(self._group) >= GROUP_RECORDS

    def _start_commit(self) -> None:
        committed = self._commit(self._group)
        self._committing = asyncio.ensure_future(self._count(self._group, committed))
        self._committing.add_done_callback(self._on_committed)
        self._group, self._group_bytes = [], 0

    def _on_committed(self, task: "asyncio.Task[None]") -> None:
        """Give the disk more at once, if there is enough, and not only when the next record has come."""
        if not task.cancelled() and task.exception() is None and self._is_due:
            self._start_commit()

    async def _commit_next(self) -> None:
        """Wait for the group that is being committed; then the one that gathered behind it is, or was, started on."""
        if self._committing is not None:
            await self._committing
        if self._group:
            self._start_commit()

    async def _commit_all(self) -> None:
        await self._commit_next()
        if self._committing is not None:
            await self._committing

    def _commit(self, group: Sequence[Received]) -> "asyncio.Future[list[PutResult]]":
        """Hand a group to the store, its buffers with it; they come back with the store's answer."""
        tenant = self.service.tenants.by_id(self.tenant.id) or self.tenant
        writer = self.writer
        records = [NewRecord(tenant.id, each.header, _block_tokens(each), (each.data,), writer) for each in group]
        committed = asyncio.wrap_future(self.service.store.put(records, quota_bytes=tenant.document.quota_bytes))
        buffers = [self._held.pop(each.index) for each in group]
        committed.add_done_callback(lambda _: self._give_back(*buffers))
        return committed

    async def _count(self, group: Sequence[Received], committed: "asyncio.Future[list[PutResult]]") -> None:
        # Shielded: an upload that is cancelled must not have its buffers back while the store still reads them.
        results = await asyncio.shield(committed)
        for received, result in zip(group, results, strict=True):
            self.tally.note(received, result)
        await self.service.drop_unwanted(self.tenant.id, {each.header.fingerprint for each in group})

    def _give_back(self, *buffers: memoryview) -> None:
        budget = self.service.budget
        for buffer in buffers:
            size_bytes = len(buffer)
            budget.buffers.give_back(buffer)
            budget.release(size_bytes, tenant=self.tenant.id)

    async def _settle(self) -> None:
        """Commit what is complete, then return what a half-received record still holds."""
        try:
            await self._commit_all()
        finally:
            self._give_back(*self._held.values())
            self._held.clear()


def _block_tokens(received: Received) -> int:
    return received.layout.block_tokens if received.layout.chained else 0
