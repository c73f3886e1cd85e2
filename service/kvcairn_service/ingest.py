"""One upload: parse, verify and store records while the body still arrives.

At most one group of an upload is being committed at a time, and the next gathers behind it, so that a record's parent
from the same body is in the store before the record is checked against it. Memory is lent by the budget all uploads
share; an upload that must wait for it first gives back everything it holds.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from kvcairn_protocol.errors import Reason, RecordError
from kvcairn_protocol.messages import RECORDS_TYPE, Rejected, StoreAnswer
from kvcairn_service.errors import Malformed, NoSpace, TooLarge
from kvcairn_service.receive import Announced, Event, Received, RecordParser, Refused
from kvcairn_service.state import Service
from kvcairn_service.tenants import KeptTenant
from kvcairn_storage.prefixes import NewRecord, Outcome, PutResult

RECORD_TYPES = (RECORDS_TYPE, "application/octet-stream")

GROUP_BYTES = 32 << 20
"""A group this large is committed even if it must wait for the one before it."""

GROUP_RECORDS = 512
"""So are this many, however small: the loop decides on them in one go, and others wait meanwhile."""

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
    """One upload of a tenant's. To be used once, from the event loop. _held: how many records of each size in bytes."""

    service: Service
    tenant: KeptTenant
    tally: Tally = field(default_factory=Tally)
    _parser: RecordParser = field(init=False)
    _held: Counter[int] = field(default_factory=Counter)
    _group: list[Received] = field(default_factory=list)
    _group_bytes: int = 0
    _committing: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        layouts, tenant_id = self.service.layouts, self.tenant.id
        self._parser = RecordParser(
            lambda fingerprint: layouts.find(tenant_id, fingerprint),
            max_record_bytes=self.service.settings.max_record_bytes,
            max_records=self.service.settings.max_keys,
        )

    async def run(self, body: AsyncIterator[bytes]) -> StoreAnswer:
        """Store what `body` brings; complete records stand whatever comes after them.

        Malformed: an empty body. TooLarge, NoSpace: nothing landed for want of room. What `body` raises goes through,
        after everything that was complete has been committed.
        """
        try:
            await self._take_all(body)
        finally:
            await self._settle()
        return self.tally.answer()

    async def _take_all(self, body: AsyncIterator[bytes]) -> None:
        is_empty = True
        async for piece in body:
            is_empty = False
            self.service.counters.received_bytes += len(piece)
            for event in self._parser.feed(piece):
                await self._take(event)
            if self._parser.lost:
                return
        if is_empty:
            raise Malformed("the body is empty; it holds one record or more")
        cut = self._parser.finish()
        if cut:
            self.tally.refuse(cut.index, cut.key, cut.reason)

    async def _take(self, event: Event) -> None:
        if isinstance(event, Announced):
            await self._borrow(event.record_bytes)
        elif isinstance(event, Refused):
            self.tally.refuse(event.index, event.key, event.reason)
        else:
            await self._accept(event)

    async def _accept(self, received: Received) -> None:
        try:
            await self._verify(received)
        except RecordError as error:
            self.tally.refuse(received.index, received.header.key.hex(), error.reason)
            self._give_back(len(received.data))
            return
        self._group.append(received)
        self._group_bytes += len(received.data)
        is_idle = self._committing is None or self._committing.done()
        is_due = self._group_bytes >= (START_BYTES if is_idle else GROUP_BYTES)
        if is_due or len(self._group) >= GROUP_RECORDS:
            await self._start_commit()

    async def _verify(self, received: Received) -> None:
        if not received.is_raw:
            async with self.service.decoding:
                await asyncio.to_thread(received.verify)
        elif len(received.data) > VERIFY_ON_LOOP_BYTES:
            await asyncio.to_thread(received.verify)
        else:
            received.verify()

    async def _borrow(self, size_bytes: int) -> None:
        if not self.service.budget.try_acquire(size_bytes):
            await self._commit_all()
            await self.service.budget.acquire(size_bytes)
        self._held[size_bytes] += 1

    def _give_back(self, *sizes_bytes: int) -> None:
        self._held.subtract(sizes_bytes)
        for size_bytes in sizes_bytes:
            self.service.budget.release(size_bytes)

    async def _start_commit(self) -> None:
        """Wait for the group that is being committed, then start on the one that gathered behind it."""
        group, self._group, self._group_bytes = self._group, [], 0
        before, self._committing = self._committing, None
        if before is not None:
            await before
        if group:
            self._committing = asyncio.create_task(self._commit(group))

    async def _commit_all(self) -> None:
        await self._start_commit()
        await self._start_commit()

    async def _commit(self, group: Sequence[Received]) -> None:
        tenant = self.service.tenants.by_id(self.tenant.id) or self.tenant
        records = [NewRecord(tenant.id, each.header, _block_tokens(each), (each.data,)) for each in group]
        try:
            results = await asyncio.wrap_future(
                self.service.store.put(records, quota_bytes=tenant.document.quota_bytes)
            )
        finally:
            self._give_back(*(len(each.data) for each in group))
        for received, result in zip(group, results, strict=True):
            self.tally.note(received, result)
        await self.service.drop_unwanted(tenant.id, {each.header.fingerprint for each in group})

    async def _settle(self) -> None:
        """Commit what is complete, then return what a half-received record still holds."""
        try:
            await self._commit_all()
        finally:
            self._give_back(*self._held.elements())


def _block_tokens(received: Received) -> int:
    return received.layout.block_tokens if received.layout.chained else 0
