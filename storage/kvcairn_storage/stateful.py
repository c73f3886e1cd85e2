"""State machines that compare a store with plain dictionaries; for whoever writes a store. Needs hypothesis.

class MyMachine(RecordStoreMachine):
    def open(self): return MyStore(...)
TestMyStore = MyMachine.TestCase
"""

# ruff: noqa: S101 - these are tests, shipped
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcairn_protocol.layout import Kind
from kvcairn_storage.pins import Pin
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import Entry, RecordKey, RecordStore
from kvcairn_storage.testing import LAYOUT, SECONDS, ManualClock, make_put, make_record

KEYS = [bytes([index + 1]) * 32 for index in range(6)]
KINDS = st.sampled_from(list(Kind))
TENANTS = st.sampled_from(["t", "u"])
SPOTS = st.integers(0, len(KEYS) - 1)
PAYLOADS = st.binary(max_size=40)


class RecordStoreMachine(RuleBasedStateMachine):
    """A RecordStore is a dictionary from keys to entries and bytes."""

    def open(self) -> RecordStore:
        """An empty store; a subclass says which."""
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.store = self.open()
        self.model: dict[RecordKey, tuple[Entry, bytes]] = {}

    @rule(
        puts=st.lists(st.tuples(TENANTS, KINDS, SPOTS, PAYLOADS), max_size=4, unique_by=lambda item: item[:3]),
        deletes=st.lists(st.tuples(TENANTS, KINDS, SPOTS), max_size=3),
    )
    def write(self, puts: list[tuple[str, Kind, int, bytes]], deletes: list[tuple[str, Kind, int]]) -> None:
        gone = [RecordKey(tenant, LAYOUT, kind, KEYS[spot]) for tenant, kind, spot in deletes]
        records = [make_record(key=KEYS[s], tenant=t, kind=k, payload=payload) for t, k, s, payload in puts]
        batch = [make_put(record) for record in records]
        self.store.write(batch, gone).result(SECONDS)
        for key in gone:
            self.model.pop(key, None)
        self.model.update({put.key: (put.entry, b"".join(put.data)) for put in batch})

    @rule(tenant=TENANTS, kind=KINDS, spot=SPOTS, moment=st.floats(0, 1e10), uses=st.integers(0, 9))
    def use(self, tenant: str, kind: Kind, spot: int, moment: float, uses: int) -> None:
        key = RecordKey(tenant, LAYOUT, kind, KEYS[spot])
        self.store.note_use({key: (moment, uses)}).result(SECONDS)
        if key in self.model:
            self.model[key][0].last_used, self.model[key][0].uses = moment, uses

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert dict(self.store.scan()) == {key: entry for key, (entry, _) in self.model.items()}
        for tenant in ("t", "u"):
            for kind in Kind:
                for spot in KEYS:
                    key = RecordKey(tenant, LAYOUT, kind, spot)
                    assert self.store.get(key) == (self.model[key][1] if key in self.model else None)

    def teardown(self) -> None:
        assert self.store.check_integrity() == []
        self.store.close()


class PrefixStoreMachine(RuleBasedStateMachine):
    """A PrefixStore with room for everything: outcomes, lookups and removals follow from the headers stored."""

    persistent: ClassVar[bool] = False

    def open(self) -> RecordStore:
        """An empty record store; a subclass says which."""
        raise NotImplementedError

    def open_again(self) -> RecordStore:
        """The record store that was closed a moment ago; asked only of a `persistent` one."""
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.store = PrefixStore(self.open(), capacity_bytes=1 << 30, clock=self.clock)
        self.model: dict[RecordKey, dict[str, Any]] = {}
        self.pins: dict[tuple[str, str], Pin] = {}

    @rule(tenant=TENANTS, kind=KINDS, spot=SPOTS, place=st.integers(1, 4), parent=SPOTS, payload=PAYLOADS)
    def put(self, tenant: str, kind: Kind, spot: int, place: int, parent: int, payload: bytes) -> None:
        prefix = bytes(16) if place == 1 else KEYS[parent][:16]
        record = make_record(
            key=KEYS[spot], tenant=tenant, kind=kind, position=place * 128, parent=prefix, payload=payload
        )
        (result,) = self.store.put([record]).result(SECONDS)
        assert str(result.outcome) == self._expected(record.key, place * 128, prefix)
        if result.outcome == "stored":
            self.model[record.key] = {"position": place * 128, "parent": prefix, "data": b"".join(record.data)}
            self.model[record.key]["used"] = self.clock.now
        if result.outcome in ("stored", "present"):
            self._use(record.key)

    def _expected(self, key: RecordKey, position: int, parent: bytes) -> str:
        known = self.model.get(key)
        if known is not None:
            return "present" if (known["position"], known["parent"]) == (position, parent) else "conflict"
        block = self.model.get(key._replace(kind=Kind.HISTORY))
        if key.kind is not Kind.HISTORY and block and (block["position"], block["parent"]) != (position, parent):
            return "conflict"
        above = self.model.get(key._replace(key=parent * 2))
        if key.kind is Kind.HISTORY and position > 128 and above and above["position"] != position - 128:
            return "parent"
        return "stored"

    def _use(self, key: RecordKey) -> None:
        """Recency goes up the tree, link by link, as the page on eviction says."""
        while key in self.model:
            record = self.model[key]
            record["used"] = self.clock.now
            above = key._replace(key=record["parent"] * 2)
            linked = above in self.model and self.model[above]["position"] == record["position"] - 128
            if key.kind is not Kind.HISTORY or not linked:
                return
            key = above

    @rule(tenant=TENANTS, kind=KINDS, spot=SPOTS)
    def touch(self, tenant: str, kind: Kind, spot: int) -> None:
        key = RecordKey(tenant, LAYOUT, kind, KEYS[spot])
        assert self.store.touch([key]) == (key in self.model)
        self._use(key)

    @rule(tenant=TENANTS, kind=KINDS, spot=SPOTS)
    def delete(self, tenant: str, kind: Kind, spot: int) -> None:
        key = RecordKey(tenant, LAYOUT, kind, KEYS[spot])
        assert self.store.delete(key) == (self.model.pop(key, None) is not None)

    @rule(tenant=TENANTS)
    def drop(self, tenant: str) -> None:
        gone = [key for key in self.model if key.tenant == tenant]
        assert self.store.drop(tenant=tenant) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(tenant=TENANTS, idle=st.integers(1, 20))
    def expire(self, tenant: str, idle: int) -> None:
        before = self.clock.now - idle
        mine = {key: record for key, record in self.model.items() if key.tenant == tenant}
        stale = {key for key, record in mine.items() if record["used"] < before} - self._pinned()
        gone = {key for key in stale if key.kind is not Kind.HISTORY}
        while leaf := next((key for key in stale - gone if self._is_free(key, gone)), None):
            gone |= {key for key in mine if key._replace(kind=Kind.HISTORY) == leaf}
        assert self.store.expire(tenant=tenant, idle_seconds=idle) == len(gone)
        for key in gone:
            del self.model[key]

    def _is_free(self, block: RecordKey, gone: set[RecordKey]) -> bool:
        """Whether a block has no heir that stays (a pinned one is the only that can), and nothing pinned at its key."""
        heirs = {
            key
            for key, record in self.model.items()
            if (key.tenant, key.kind, record["parent"]) == (block.tenant, Kind.HISTORY, block.key[:16])
            and record["position"] == self.model[block]["position"] + 128
        }
        return not heirs - gone and not {block._replace(kind=kind) for kind in Kind} & self._pinned()

    def _pinned(self) -> set[RecordKey]:
        """What the pins in force name, there or not: all records of these tests take one page."""
        return {
            RecordKey(pin.tenant, pin.layout, each.kind, each.key) for pin in self.pins.values() for each in pin.records
        }

    def _release(self, pinned_before: set[RecordKey]) -> None:
        for key in pinned_before - self._pinned():
            self._use(key)

    @rule(tenant=TENANTS, name=st.sampled_from(["p", "q"]), spots=st.lists(SPOTS, min_size=1, max_size=3, unique=True))
    def pin(self, tenant: str, name: str, spots: list[int]) -> None:
        keys = [KEYS[spot] for spot in spots]
        done = self.store.pins.pin(
            tenant=tenant, layout=LAYOUT, pin_id=name, keys=keys, block_tokens=128, limit_bytes=1 << 20
        )
        run = 0
        while run < len(keys) and self._position(tenant, Kind.HISTORY, keys[run]) == (run + 1) * 128:
            run += 1
        states = [at for at in range(run) if self._position(tenant, Kind.STATE, keys[at]) == (at + 1) * 128]
        states = states[-2:] if states[-1:] == [run - 1] else states[-1:]
        assert (done.pin is None) is (run == 0)
        if done.pin is not None:
            expected = {(Kind.HISTORY, key) for key in keys[:run]} | {(Kind.STATE, keys[at]) for at in states}
            assert {(each.kind, each.key) for each in done.pin.records} == expected
            before = self._pinned()
            assert done.replaced == self.pins.get((tenant, name))
            self.pins[tenant, name] = done.pin
            self._release(before)

    def _position(self, tenant: str, kind: Kind, key: bytes) -> int | None:
        record = self.model.get(RecordKey(tenant, LAYOUT, kind, key))
        return record["position"] if record else None

    @rule(tenant=TENANTS, name=st.sampled_from(["p", "q"]))
    def unpin(self, tenant: str, name: str) -> None:
        before = self._pinned()
        assert self.store.pins.unpin(tenant, name) is (self.pins.pop((tenant, name), None) is not None)
        self._release(before)

    @precondition(lambda self: self.persistent)
    @rule()
    def reopen(self) -> None:
        self.store.close()
        pins = list(self.pins.values())
        self.store = PrefixStore(self.open_again(), capacity_bytes=1 << 30, clock=self.clock, pins=pins)

    @invariant()
    def serves_what_the_model_holds(self) -> None:
        every = [RecordKey(tenant, LAYOUT, kind, key) for tenant in ("t", "u") for kind in Kind for key in KEYS]
        assert self.store.exists(every) == [key in self.model for key in every]
        for key, record in self.model.items():
            assert self.store.get(key) == record["data"]
            entry = self.store.entry(key)
            assert entry is not None
            assert (entry.position, entry.last_used) == (record["position"], record["used"])
        assert self.store.charged_bytes == 4096 * len(self.model)
        assert sum(usage.records for usage in self.store.usage()) == len(self.model)
        assert sum(usage.pinned_records for usage in self.store.usage()) == len(self._pinned() & self.model.keys())
        assert self.store.pins.pinned_bytes() == 4096 * len(self._pinned())

    def teardown(self) -> None:
        assert self.store.check_integrity() == []
        self.store.close()
