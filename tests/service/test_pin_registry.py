"""Who has which pin and until when, on documents that fail on demand and a clock that is moved by hand."""

import asyncio

import pytest

from kvcairn_protocol.layout import parse_layout
from kvcairn_protocol.messages import Tenant, TenantSettings
from kvcairn_protocol.record import parse_header
from kvcairn_service.app import compose
from kvcairn_service.errors import LayoutUnknown, NotFound, TooMany
from kvcairn_service.kept_pins import TABLE, load_pins
from kvcairn_service.pins import Pins
from kvcairn_service.settings import load_settings
from kvcairn_service.state import sweep_orphans
from kvcairn_service.stores import Stores
from kvcairn_storage.errors import StoreFull
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.testing import SECONDS, ManualClock
from service_samples import canonical, chain, chain_records, layout_document

PAGE = 4096
DOCUMENT = layout_document(model="registry")
LAYOUT = parse_layout(canonical(DOCUMENT))
TENANT = Tenant(name="t", pin_quota_bytes=20 * PAGE)


class Documents(MemoryStore):
    """A store of documents that can be made to refuse every change."""

    is_full = False

    def put_document(self, table, name, document):
        self._refuse()
        super().put_document(table, name, document)

    def delete_document(self, table, name):
        self._refuse()
        return super().delete_document(table, name)

    def _refuse(self):
        if self.is_full:
            raise StoreFull("the disk")


class Registry:
    """A registry with two stored prompts of eight blocks; 100 pages of capacity, so 25 for pins."""

    def __init__(self, *, max_pins=3):
        self.documents, self.records, self.clock = Documents(), MemoryStore(), ManualClock()
        self.max_pins = max_pins
        self.open()
        self.prompts = [chain(DOCUMENT, 8, seed=seed) for seed in (1, 2)]
        for keys in self.prompts:
            self.store.put([self.record(packed) for packed in chain_records(DOCUMENT, keys)]).result(SECONDS)

    def open(self):
        """Start on what is there, as after a kill."""
        kept = load_pins(self.documents, now=self.clock.now)
        self.store = PrefixStore(
            self.records, capacity_bytes=100 * PAGE, clock=self.clock, pins=[pin for _, pin in kept]
        )
        self.pins = Pins(
            self.documents, self.store, [each for each, _ in kept],
            max_pins=self.max_pins, max_seconds=1000, clock=self.clock,
        )  # fmt: skip

    @staticmethod
    def record(packed, tenant="id"):
        header = parse_header(packed[:128], max_raw_bytes=1 << 20)
        return NewRecord(tenant, header, LAYOUT.block_tokens, (packed,))

    async def pin(self, keys, *, name=None, seconds=100, is_wanted=True):
        put = self.pins.put("id", TENANT, LAYOUT, keys, ttl_seconds=seconds, name=name, is_wanted=lambda *_: is_wanted)
        return (await put)[0]

    @property
    def pinned_pages(self):
        return self.store.pins.pinned_bytes() // PAGE

    @property
    def names(self):
        return [each.name for each in self.pins.of("id")]


@pytest.fixture
def registry():
    return Registry()


def test_a_pin_whose_document_cannot_be_written_is_none_and_the_one_it_was_to_replace_stands(registry):
    async def scenario():
        await registry.pin(registry.prompts[0], name="kept")
        registry.documents.is_full = True
        with pytest.raises(StoreFull):
            await registry.pin(registry.prompts[1][:3], name="new")
        with pytest.raises(StoreFull):
            await registry.pin(registry.prompts[1][:3], name="kept")

    asyncio.run(scenario())
    assert registry.names == ["kept"]
    assert registry.pinned_pages == 8
    (kept,) = registry.pins.of("id")
    pin = registry.store.pins.find("id", kept.id)
    assert [each.key for each in pin.records] == registry.prompts[0]


def test_a_pin_that_expired_takes_no_room_at_once_and_its_document_goes_when_the_disk_lets_it(registry):
    async def scenario():
        short = await registry.pin(registry.prompts[0], name="short", seconds=10)
        await registry.pin(registry.prompts[1][:2], name="long")
        registry.clock.advance(11)
        registry.documents.is_full = True
        assert registry.names == ["long"]
        assert registry.pinned_pages == 2
        with pytest.raises(NotFound):
            registry.pins.get("id", short.id)
        with pytest.raises(StoreFull):
            await registry.pins.drop_expired()
        registry.documents.is_full = False
        await registry.pins.drop_expired()

    asyncio.run(scenario())
    assert len(registry.documents.documents(TABLE)) == 1
    assert registry.names == ["long"]


def test_a_pin_that_is_renewed_after_it_expired_is_a_new_one_and_outlives_the_sweep(registry):
    async def scenario():
        await registry.pin(registry.prompts[0], name="daily", seconds=10)
        registry.clock.advance(11)
        await registry.pin(registry.prompts[0], name="daily", seconds=10)
        await registry.pins.drop_expired()

    asyncio.run(scenario())
    assert registry.names == ["daily"]
    assert registry.pinned_pages == 8


def test_a_list_that_is_asked_for_while_an_expired_pin_is_renewed_does_not_end_the_new_one(registry):
    """The old one's time is over, and the new one's document is not written yet."""

    class Slow(Documents):
        def put_document(self, table, name, document):
            registry.clock.advance(11)
            seen.append(registry.pins.of("id"))
            super().put_document(table, name, document)

    async def scenario():
        await registry.pin(registry.prompts[0], name="daily", seconds=10)
        registry.documents.__class__ = Slow
        await registry.pin(registry.prompts[0], name="daily", seconds=100)

    seen = []
    asyncio.run(scenario())
    assert seen == [[]]
    assert registry.names == ["daily"]
    assert registry.pinned_pages == 8


def test_one_pin_more_than_a_tenant_may_have_is_refused_until_one_goes(registry):
    async def scenario():
        for length in (1, 2, 3):
            await registry.pin(registry.prompts[0][:length])
        with pytest.raises(TooMany, match="at most 3 pins"):
            await registry.pin(registry.prompts[0][:4])
        await registry.pin(registry.prompts[0][:3])
        await registry.pins.remove("id", registry.pins.of("id")[0].id)
        await registry.pin(registry.prompts[0][:4])

    asyncio.run(scenario())
    assert len(registry.pins.of("id")) == 3


def test_a_layout_that_is_deleted_meanwhile_gets_no_pin(registry):
    with pytest.raises(LayoutUnknown):
        asyncio.run(registry.pin(registry.prompts[0], is_wanted=False))
    assert registry.pinned_pages == 0
    assert registry.documents.documents(TABLE) == {}


def test_what_a_tenant_has_pinned_is_let_go_with_it_and_leaves_nothing(registry):
    async def scenario():
        await registry.pin(registry.prompts[0])
        await registry.pin(registry.prompts[1], name="other")
        assert registry.pins.places() == {("id", LAYOUT.fingerprint)}
        await registry.pins.remove_all("id")

    asyncio.run(scenario())
    assert registry.pins.places() == set()
    assert registry.pinned_pages == 0
    assert registry.documents.documents(TABLE) == {}


def test_pins_are_the_same_after_a_start_whatever_they_were_made_of(registry):
    async def scenario():
        await registry.pin(registry.prompts[0], name="one")
        registry.clock.advance(1)
        await registry.pin(registry.prompts[0][:5])

    asyncio.run(scenario())
    before = registry.pins.of("id")
    found = [registry.store.pins.find("id", each.id) for each in before]
    registry.open()
    assert registry.pins.of("id") == before
    assert [registry.store.pins.find("id", each.id) for each in before] == found
    assert registry.pinned_pages == 8


async def service_with_a_pin(memory):
    """An application's service, on a directory where a tenant has pinned three blocks."""
    settings = load_settings({"data": "unused", "scrub_bytes_per_second": 0})
    service = compose(settings, Stores(memory, memory, "generation", 100 * PAGE))
    tenant = await service.tenants.change("pinning", lambda _: TenantSettings(pin_quota_bytes=20 * PAGE))
    await service.layouts.put(tenant.id, LAYOUT)
    keys = chain(DOCUMENT, 3)
    records = [Registry.record(packed, tenant.id) for packed in chain_records(DOCUMENT, keys)]
    await asyncio.wrap_future(service.store.put(records))
    await service.pins.put(
        tenant.id, tenant.document, LAYOUT, keys, ttl_seconds=60, name=None, is_wanted=service.is_wanted
    )
    assert service.store.pins.pinned_bytes() == 3 * PAGE
    return service, tenant


def test_a_tenant_that_is_deleted_leaves_no_pin_and_no_room_taken():
    async def scenario():
        memory = MemoryStore()
        service, tenant = await service_with_a_pin(memory)
        await service.tenants.remove(tenant.name)
        await service.drop_tenant(tenant.id)
        assert service.store.pins.pinned_bytes() == 0
        assert memory.documents(TABLE) == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["tenant", "layout"])
def test_a_kill_in_the_middle_of_a_deletion_leaves_no_pin_after_the_next_start(what):
    async def scenario():
        memory = MemoryStore()
        before, tenant = await service_with_a_pin(memory)
        if what == "tenant":
            await before.tenants.remove(tenant.name)
        else:
            await before.layouts.remove(tenant.id, LAYOUT.fingerprint)
        settings = load_settings({"data": "unused", "scrub_bytes_per_second": 0})
        after = compose(settings, Stores(memory, memory, "generation", 100 * PAGE))
        assert after.store.pins.pinned_bytes() == 3 * PAGE
        await sweep_orphans(after)
        assert after.store.pins.pinned_bytes() == 0
        assert after.store.charged_bytes == 0
        assert memory.documents(TABLE) == {}

    asyncio.run(scenario())
