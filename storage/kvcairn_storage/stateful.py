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
        stale = {key for key, record in mine.items() if record["used"] < before}
        # A fresh block keeps its ancestors fresh, so that no stale block has a live heir; what stands at its key goes.
        blocks = {key for key in stale if key.kind is Kind.HISTORY}
        gone = stale | {key for key in mine if key._replace(kind=Kind.HISTORY) in blocks}
        assert self.store.expire(tenant=tenant, idle_seconds=idle) == len(gone)
        for key in gone:
            del self.model[key]

    @precondition(lambda self: self.persistent)
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = PrefixStore(self.open_again(), capacity_bytes=1 << 30, clock=self.clock)

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

    def teardown(self) -> None:
        assert self.store.check_integrity() == []
        self.store.close()
