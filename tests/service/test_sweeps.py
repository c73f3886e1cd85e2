"""What goes on in the background, on an application in this process whose disk fails on demand."""

import asyncio

import pytest

from kvcairn_protocol.layout import parse_layout
from kvcairn_protocol.messages import TenantSettings
from kvcairn_protocol.record import parse_header
from kvcairn_service.app import build_app, compose
from kvcairn_service.settings import load_settings
from kvcairn_service.stores import Stores
from kvcairn_storage.errors import StoreClosed, StoreUnreadable
from kvcairn_storage.faulty import FaultyStore
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord
from service_samples import canonical, chain, chain_records, layout_document

DOCUMENT = layout_document(model="sweeps")


class Running:
    """A service with one tenant whose three records expire at once."""

    def __init__(self) -> None:
        memory = MemoryStore()
        self.disk = FaultyStore(memory)
        settings = load_settings({"data": "unused", "sweep_seconds": 0.01, "scrub_bytes_per_second": 0})
        self.service = compose(settings, Stores(self.disk, memory, "generation", 1 << 20))
        self.app = build_app(self.service)

    async def fill(self) -> None:
        layout = parse_layout(canonical(DOCUMENT))
        await self.service.tenants.change("hasty", lambda _: TenantSettings(ttl_seconds=0.001))
        tenant = self.service.tenants.get("hasty")
        await self.service.layouts.put(tenant.id, layout)
        packed = chain_records(DOCUMENT, chain(DOCUMENT, 3))
        headers = [parse_header(each[:128], max_raw_bytes=1 << 20) for each in packed]
        records = [
            NewRecord(tenant.id, header, layout.block_tokens, (data,))
            for header, data in zip(headers, packed, strict=True)
        ]
        await asyncio.wrap_future(self.service.store.put(records))

    async def is_swept(self) -> bool:
        """Whether the sweep drops everything; bounded."""
        for _ in range(500):
            if self.service.store.charged_bytes == 0:
                return True
            await asyncio.sleep(0.01)
        return False


@pytest.mark.parametrize(
    "failure", [StoreUnreadable("the disk"), RuntimeError("nobody expected this")], ids=["known", "unexpected"]
)
def test_a_sweep_that_fails_is_logged_and_the_next_one_runs_and_the_store_is_closed(failure, caplog):
    async def scenario():
        running = Running()
        await running.fill()
        running.disk.fail_writes(failure)
        async with running.app.router.lifespan_context(running.app):
            assert await running.is_swept()
        with pytest.raises(StoreClosed):
            running.disk.scan()

    asyncio.run(scenario())
    assert any(str(failure) in record.getMessage() + str(record.exc_info) for record in caplog.records)
