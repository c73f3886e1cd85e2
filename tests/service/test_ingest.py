"""One upload against a store that hesitates and fails: buffers come back once, and never while they are read."""

import asyncio

import pytest

from kvcairn_protocol.layout import parse_layout
from kvcairn_service.app import compose
from kvcairn_service.errors import Disconnected
from kvcairn_service.ingest import START_BYTES, Upload
from kvcairn_service.settings import Settings
from kvcairn_service.stores import Stores
from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.faulty import FaultyStore
from kvcairn_storage.memory import MemoryStore
from service_samples import canonical, chain, chain_records, fingerprint, layout_document

DOCUMENT = layout_document(model="ingest", history_bytes=1 << 20)
RECORDS = chain_records(DOCUMENT, chain(DOCUMENT, 24))
GROUP = -(-START_BYTES // len(RECORDS[0]))


class Whole:
    """A body that is there already; or that breaks off with an error, or never ends."""

    def __init__(self, data, end=None):
        self.data, self.at, self.end = memoryview(data), 0, end

    async def fill(self, target):
        left = len(self.data) - self.at
        if self.end is not None and left < len(target):
            await self.end()
        taken = min(left, len(target))
        target[:taken] = self.data[self.at : self.at + taken]
        self.at += taken
        return taken


async def gone():
    raise Disconnected("gone")


async def never():
    await asyncio.Event().wait()


@pytest.fixture
def stage(tmp_path):
    memory = MemoryStore()
    faulty = FaultyStore(memory)
    settings = Settings(data=tmp_path, capacity=256 << 20)
    service = compose(settings, Stores(faulty, memory, "g", 256 << 20))
    yield service, faulty
    faulty.resume()
    service.store.close()


async def upload(service, body):
    tenant = service.tenants.default
    layout = parse_layout(canonical(DOCUMENT))
    if service.layouts.find(tenant.id, fingerprint(DOCUMENT)) is None:
        await service.layouts.put(tenant.id, layout)
    return await Upload(service=service, tenant=tenant, writer="open").run(body)


def at_rest(service):
    budget = service.budget
    return budget.used_bytes == budget.buffers.lent_bytes == 0


def stored(service):
    return {bytes(data) for _, data in service.records._records._records.values()}


def test_all_memory_comes_back_and_is_used_again(stage):
    service, _ = stage

    async def scenario():
        for _ in range(3):
            answer = await upload(service, Whole(b"".join(RECORDS)))
            assert answer.stored + answer.present == len(RECORDS)
            assert at_rest(service)

    asyncio.run(scenario())
    assert stored(service) == set(RECORDS)
    assert service.budget.buffers.free_bytes <= service.budget.total_bytes


@pytest.mark.parametrize("end", [gone, None], ids=["gone", "cut"])
def test_what_was_whole_stands_and_the_half_record_leaves_nothing(stage, end):
    service, _ = stage

    async def scenario():
        body = Whole(b"".join(RECORDS[:10])[:-5], end)
        if end is None:
            answer = await upload(service, body)
            assert (answer.stored, answer.rejected[0].reason) == (9, "framing")
        else:
            with pytest.raises(Disconnected):
                await upload(service, body)
        assert at_rest(service)

    asyncio.run(scenario())
    assert stored(service) == set(RECORDS[:9])


def test_an_upload_that_is_cancelled_leaves_its_buffers_to_the_commit_that_reads_them(stage):
    """Else the next upload would write into a record on its way to the disk."""
    service, faulty = stage

    async def scenario():
        faulty.pause()
        first = asyncio.create_task(upload(service, Whole(b"".join(RECORDS[:GROUP]), never)))
        while service.budget.buffers.lent_bytes < GROUP << 20:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        while not first.done():
            first.cancel()
            await asyncio.sleep(0.01)
        assert not at_rest(service)
        second = asyncio.create_task(upload(service, Whole(b"".join(RECORDS[GROUP:]))))
        await asyncio.sleep(0.05)
        faulty.resume()
        await second
        assert at_rest(service)

    asyncio.run(scenario())
    assert stored(service) == set(RECORDS)


def test_a_disk_that_refuses_a_group_gives_all_memory_back(stage):
    service, faulty = stage

    async def scenario():
        faulty.fail_writes(*[StoreUnreadable("broken")] * (1 + GROUP))  # together, then each alone
        with pytest.raises(StoreUnreadable):
            await upload(service, Whole(b"".join(RECORDS)))
        assert at_rest(service)

    asyncio.run(scenario())
    assert not stored(service) & set(RECORDS[:GROUP])


def test_the_next_group_gathers_while_one_is_committed(stage):
    """With a disk that hesitates, no more than two groups are taken in, and nothing is lost."""
    service, faulty = stage

    async def scenario():
        faulty.pause()
        body = Whole(b"".join(RECORDS))
        task = asyncio.create_task(upload(service, body))
        await asyncio.sleep(0.3)
        assert not task.done()
        assert body.at > (GROUP + 1) << 20, "it goes on reading behind the commit"
        faulty.resume()
        assert (await task).stored == len(RECORDS)

    asyncio.run(scenario())
    assert stored(service) == set(RECORDS)


def test_what_gathered_is_committed_at_the_end_of_the_group_before_and_not_only_when_more_comes(stage):
    service, faulty = stage

    async def scenario():
        faulty.pause()
        body = Whole(b"".join(RECORDS[: 2 * GROUP]), never)
        task = asyncio.create_task(upload(service, body))
        while service.budget.buffers.lent_bytes < 2 * GROUP << 20:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        faulty.resume()
        async with asyncio.timeout(10):
            while not at_rest(service):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert stored(service) == set(RECORDS[: 2 * GROUP])
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(scenario())
