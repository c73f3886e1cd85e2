"""Undoing a writer: what goes, what stays, and what a purge does with records on their way in."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.layout import Kind
from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.purge import Purged, Selection
from kvcairn_storage.store import Put, RecordKey
from kvcairn_storage.testing import LAYOUT, SECONDS, FaultyStore, ManualClock, make_chain, make_record, make_state

KEYS = [bytes([index + 1]) * 32 for index in range(6)]
OTHER_KEYS = [bytes([index + 101]) * 32 for index in range(6)]
BAD = Selection(tenant="t", writer="bad")
RECORD_BYTES = 128 + len(b"payload")


class RefusingOneDeletion(FaultyStore):
    """Its second write that deletes something fails."""

    deletions = 0

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        self.deletions += bool(deletes)
        if deletes and self.deletions == 2:
            self.fail_writes(StoreUnreadable("broken"))
        return super().write(puts, deletes)


def by(writer: str, *records: NewRecord) -> list[NewRecord]:
    return [record._replace(writer=writer) for record in records]


def left(store: PrefixStore, *records: NewRecord) -> list[bool]:
    return store.exists([record.key for record in records])


def test_a_writers_blocks_go_with_all_that_was_computed_from_them_whoever_stored_it(store: PrefixStore) -> None:
    chain, branch = make_chain(KEYS), make_chain([*KEYS[:2], *OTHER_KEYS[2:]])[2:]
    states = [make_state(block) for block in chain]
    windows = [make_state(block, kind=Kind.WINDOW) for block in chain]
    store.put([*by("good", *chain[:2], *states[:2], *windows[:2]), *by("bad", chain[2])]).result(SECONDS)
    store.put(by("good", *chain[3:], *states[2:], *windows[2:], *branch)).result(SECONDS)
    expected = Purged(records=4 + 4 + 4, descendants=11, stored_bytes=4 * RECORD_BYTES + 8 * (128 + len(b"state")))
    assert store.purging.preview(BAD) == expected
    assert left(store, *chain) == [True] * 6, "a preview deletes nothing"
    assert store.purging.purge(BAD) == expected
    assert left(store, *chain) == [True, True, False, False, False, False]
    assert left(store, *states) == left(store, *windows) == [True, True, False, False, False, False]
    assert left(store, *branch) == [True] * 4, "what branched off before the bad block was not computed from it"
    assert store.purging.purge(BAD) == Purged()
    assert sum(usage.purged_records for usage in store.usage()) == 12


def test_behind_a_bad_state_the_blocks_go_and_what_else_stands_at_its_key_stays(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    window = make_state(chain[2], kind=Kind.WINDOW)
    store.put([*by("good", *chain, window), *by("bad", make_state(chain[2]))]).result(SECONDS)
    assert store.purging.purge(BAD) == Purged(4, 3, 3 * RECORD_BYTES + 128 + len(b"state"))
    assert left(store, *chain, window) == [True, True, True, False, False, False, True]


def test_a_state_whose_block_is_not_there_follows_from_the_block_before(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    orphan, unrelated = make_state(chain[3]), make_state(chain[5])
    store.put([*by("bad", chain[2]), *by("good", orphan, unrelated)]).result(SECONDS)
    assert store.purging.purge(BAD).records == 2
    assert left(store, orphan, unrelated) == [False, True]


def test_without_descendants_the_named_records_go_alone(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    state = make_state(chain[2])
    store.put([*by("bad", chain[2]), *by("good", *chain[:2], *chain[3:], state)]).result(SECONDS)
    assert store.purging.purge(Selection(tenant="t", writer="bad", descendants=False)).records == 1
    assert left(store, *chain, state) == [True, True, False, True, True, True, True]


def test_objects_of_an_unchained_layout_have_no_descendants(store: PrefixStore) -> None:
    objects = [make_record(key=key, position=0, block_tokens=0, kind=Kind.STATE) for key in KEYS]
    store.put([*by("bad", *objects[:2]), *by("good", *objects[2:])]).result(SECONDS)
    assert store.purging.purge(BAD) == Purged(2, 0, 2 * RECORD_BYTES)


def test_tenant_layout_and_time_bound_what_is_named(store: PrefixStore, clock: ManualClock) -> None:
    lone = [make_record(key=key) for key in KEYS]
    foreign, of_another_layout = make_record(key=KEYS[0], tenant="u"), make_record(key=KEYS[0], layout=bytes(32))
    store.put(by("bad", foreign, of_another_layout)).result(SECONDS)
    for record in lone:
        store.put(by("bad", record)).result(SECONDS)
        clock.advance(10)
    start = clock.now - 60
    assert store.purging.purge(Selection(tenant="t", layout=LAYOUT, since=start + 10, until=start + 30)).records == 2
    assert left(store, *lone) == [True, False, False, True, True, True]
    assert store.purging.purge(Selection(tenant="t", layout=LAYOUT, writer="good")) == Purged()
    assert store.purging.purge(Selection(tenant="t", layout=LAYOUT)).records == 4
    assert left(store, foreign, of_another_layout) == [True, True]


def test_the_first_writer_of_a_record_is_remembered_until_it_is_replaced(store: PrefixStore, disk: FaultyStore) -> None:
    record = make_record(key=KEYS[0])
    store.put(by("first", record)).result(SECONDS)
    store.put(by("second", record)).result(SECONDS)
    assert [each.writer for each in store.purging.writers("t")] == ["first"]
    disk.corrupt(record.key)
    store.put(by("third", record)).result(SECONDS)
    assert [each.writer for each in store.purging.writers("t")] == ["third"]
    assert store.purging.purge(Selection(tenant="t", writer="first")) == Purged()


def test_writers_are_told_by_what_is_there_the_last_to_store_first(store: PrefixStore, clock: ManualClock) -> None:
    chain, start = make_chain(KEYS), clock.now
    store.put(by("one", *chain[:2])).result(SECONDS)
    clock.advance(5)
    store.put(by("two", *chain[2:])).result(SECONDS)
    clock.advance(5)
    store.put(by("one", make_state(chain[5]))).result(SECONDS)
    store.put(by("foreign", make_record(key=KEYS[0], tenant="u"))).result(SECONDS)
    found = [(each.writer, each.records, each.first_created, each.last_created) for each in store.purging.writers("t")]
    assert found == [("one", 3, start, start + 10), ("two", 4, start + 5, start + 5)]
    assert store.purging.writers("t")[1].stored_bytes == 4 * RECORD_BYTES


def test_what_is_being_written_is_waited_for_and_goes_too(store: PrefixStore, disk: FaultyStore) -> None:
    chain = make_chain(KEYS)
    disk.pause()
    done = store.put(by("bad", *chain))
    with ThreadPoolExecutor(1) as pool:
        purged = pool.submit(store.purging.purge, BAD)
        wait([purged], timeout=0.1)
        assert not purged.done()
        disk.resume()
        assert purged.result(SECONDS).records == 6
    assert {str(result.outcome) for result in done.result(SECONDS)} == {"stored"}
    assert left(store, *chain) == [False] * 6


def test_what_arrives_behind_a_record_that_is_gone_goes_while_the_purge_runs(
    store: PrefixStore, disk: FaultyStore
) -> None:
    chain = make_chain(KEYS)
    store.put([*by("bad", *chain[:2]), *by("good", *chain[2:4])]).result(SECONDS)
    disk.pause()
    with ThreadPoolExecutor(1) as pool:
        purged = pool.submit(store.purging.purge, BAD)
        while any(left(store, *chain[:4])):
            assert not purged.done()
        late = store.put(by("good", *chain[4:]))
        disk.resume()
        late.result(SECONDS)
        assert purged.result(SECONDS) == Purged(6, 4, 6 * RECORD_BYTES)
    assert left(store, *chain) == [False] * 6


def test_a_held_record_that_is_purged_is_a_miss_at_once(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    store.put(by("bad", *chain)).result(SECONDS)
    with store.hold([record.key for record in chain]):
        assert store.purging.purge(BAD).records == 6
        assert [store.get(record.key) for record in chain] == [None] * 6


def test_a_pinned_record_goes_like_all_others_and_its_pin_waits_for_what_is_stored_anew(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    store.put(by("bad", *chain)).result(SECONDS)
    pin = store.pins.pin(tenant="t", layout=LAYOUT, pin_id="p", keys=KEYS, block_tokens=128, limit_bytes=100 * 4096).pin
    assert pin is not None
    assert store.purging.purge(BAD).records == 6
    assert (left(store, *chain), store.pins.present_records(pin)) == ([False] * 6, 0)
    store.put(by("good", *chain)).result(SECONDS)
    assert store.pins.present_records(pin) == 6


def test_where_the_disk_refuses_in_the_middle_the_rest_is_found_again(clock: ManualClock) -> None:
    """Descendants are deleted first: were it the other way round, nothing would lead to them any more."""
    disk = RefusingOneDeletion(MemoryStore())
    store = PrefixStore(disk, capacity_bytes=1000 * 4096, clock=clock)
    keys = [index.to_bytes(4, "big") * 8 for index in range(1, 601)]
    chain = make_chain(keys)
    store.put([*by("bad", chain[0]), *by("good", *chain[1:])]).result(SECONDS)
    with pytest.raises(StoreUnreadable, match="broken"):
        store.purging.purge(BAD)
    assert left(store, *chain) == [True] * 344 + [False] * 256
    assert store.purging.purge(BAD).records == 344
    assert not any(left(store, *chain))
    store.close()


WRITERS = st.sampled_from(["good", "bad"])
TREES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), WRITERS, st.none() | WRITERS), min_size=1, max_size=4), min_size=1, max_size=5
)


@given(ranks=TREES, descendants=st.booleans())
def test_a_purge_takes_exactly_what_a_walk_down_the_tree_finds(
    *, ranks: list[list[tuple[int, str, str | None]]], descendants: bool
) -> None:
    """The oracle walks up from each record by the parents that the test itself chose."""
    store = PrefixStore(MemoryStore(), capacity_bytes=1000 * 4096)
    parents: dict[bytes, bytes | None] = {}
    writers: dict[RecordKey, str] = {}
    above: list[bytes] = []
    for depth, rank in enumerate(ranks):
        keys = [bytes([depth + 1, index + 1]) * 16 for index in range(len(rank))]
        for key, (choice, block_writer, state_writer) in zip(keys, rank, strict=True):
            parents[key] = above[choice % len(above)] if above else None
            stem = (parents[key] or bytes(32))[:16]
            block = make_record(key=key, position=(depth + 1) * 128, parent=stem)
            new = by(block_writer, block) + (by(state_writer, make_state(block)) if state_writer else [])
            store.put(new).result(SECONDS)
            writers.update({record.key: record.writer for record in new})
        above = keys
    expected = {
        key for key in writers if writers[key] == "bad" or (descendants and _follows_from_bad(key, parents, writers))
    }
    purged = store.purging.purge(Selection(tenant="t", writer="bad", descendants=descendants))
    assert {key for key, there in zip(writers, store.exists(list(writers)), strict=True) if not there} == expected
    assert purged.records == len(expected)
    assert store.check_integrity() == []
    store.close()


def _follows_from_bad(key: RecordKey, parents: dict[bytes, bytes | None], writers: dict[RecordKey, str]) -> bool:
    lineage: list[bytes] = [key.key]
    while (parent := parents[lineage[-1]]) is not None:
        lineage.append(parent)
    ancestors = [key._replace(kind=kind, key=each) for each in lineage[1:] for kind in (Kind.HISTORY, Kind.STATE)]
    if key.kind is not Kind.HISTORY:
        ancestors.append(key._replace(kind=Kind.HISTORY))
    return any(writers.get(ancestor) == "bad" for ancestor in ancestors)
