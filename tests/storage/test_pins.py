"""Pinned prefixes: they outlast eviction, quota and idle time, within limits, and cost nobody else anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcairn_protocol.layout import Kind
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.pinning import Pinned
from kvcairn_storage.pins import Obstacle
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.testing import LAYOUT, SECONDS, FaultyStore, ManualClock, make_chain, make_record, make_state

PAGE = 4096
BLOCK = 128


def keys(count: int, first: int = 1) -> list[bytes]:
    return [bytes([first, index]) * 16 for index in range(count)]


def put(store: PrefixStore, *records: NewRecord, quota_bytes: int | None = None) -> list[str]:
    return [str(result.outcome) for result in store.put(records, quota_bytes=quota_bytes).result(SECONDS)]


def present(store: PrefixStore, records: list[NewRecord]) -> list[int]:
    return [index for index, there in enumerate(store.exists([record.key for record in records])) if there]


def loners(count: int, first: int = 100, kind: Kind = Kind.HISTORY, tenant: str = "t") -> list[NewRecord]:
    return [make_record(key=key, kind=kind, tenant=tenant) for key in keys(count, first)]


def pin(
    store: PrefixStore, asked: list[bytes], pin_id: str = "p", tenant: str = "t", limit_pages: int = 1000
) -> Pinned:
    return store.pins.pin(
        tenant=tenant, layout=LAYOUT, pin_id=pin_id, keys=asked, block_tokens=BLOCK, limit_bytes=limit_pages * PAGE
    )


def flood(store: PrefixStore, rounds: int = 3) -> None:
    """Several times what the store holds, of history and of states."""
    for index in range(rounds):
        put(store, *loners(50, first=150 + index))
        put(store, *loners(50, first=150 + index, kind=Kind.STATE))


def test_a_pinned_run_and_its_deepest_states_outlast_any_flood(store: PrefixStore) -> None:
    chain = make_chain(keys(10))
    states = [make_state(chain[index]) for index in (3, 5, 8)]
    put(store, *chain, *states)
    done = pin(store, keys(9))
    assert (done.obstacle, done.run) == (None, (9, [9 * BLOCK, 6 * BLOCK]))
    flood(store)
    assert present(store, chain) == list(range(9))
    assert present(store, states) == [1, 2]
    assert done.pin is not None
    assert store.pins.present_records(done.pin) == 11
    assert store.pins.pinned_bytes() == store.pins.pinned_bytes("t") == 11 * PAGE


def test_where_no_state_stands_at_the_end_the_deepest_one_is_enough(store: PrefixStore) -> None:
    chain = make_chain(keys(6))
    put(store, *chain, make_state(chain[1]), make_state(chain[3]), make_state(chain[3], kind=Kind.WINDOW))
    assert pin(store, keys(6)).run == (6, [4 * BLOCK])
    flood(store)
    assert store.longest_run(tenant="t", layout=LAYOUT, keys=keys(6), block_tokens=BLOCK) == (6, [4 * BLOCK])


def test_pinned_records_outlast_their_tenants_quota(store: PrefixStore) -> None:
    chain = make_chain(keys(5))
    put(store, *chain)
    pin(store, keys(5))
    assert put(store, *loners(30), quota_bytes=10 * PAGE)[:5] == ["stored"] * 5
    assert present(store, chain) == list(range(5))
    assert store.charged_bytes == 10 * PAGE


def test_pinned_records_do_not_expire_and_the_end_of_a_pin_counts_as_a_use(
    store: PrefixStore, clock: ManualClock
) -> None:
    chain = make_chain(keys(4))
    put(store, *chain)
    pin(store, keys(3))
    clock.advance(1000)
    assert store.expire(tenant="t", idle_seconds=10) == 1
    assert present(store, chain) == [0, 1, 2]
    assert store.pins.unpin("t", "p")
    assert store.expire(tenant="t", idle_seconds=10) == 0
    clock.advance(11)
    assert store.expire(tenant="t", idle_seconds=10) == 3
    assert {usage.uses for usage in store.usage()} == {0}


def test_what_is_unpinned_goes_like_anything_else_and_as_fresh_as_if_used_then(store: PrefixStore) -> None:
    chain, others = make_chain(keys(5)), loners(95)
    put(store, *chain)
    pin(store, keys(5))
    put(store, *others)
    store.pins.unpin("t", "p")
    put(store, *loners(95, first=3))
    assert (present(store, chain), present(store, others)) == (list(range(5)), [])
    flood(store)
    assert present(store, chain) == []


def test_pins_that_share_blocks_count_them_once_and_keep_them_until_the_last_is_gone(store: PrefixStore) -> None:
    chain = make_chain(keys(8))
    put(store, *chain)
    pin(store, keys(8), "long")
    pin(store, keys(5), "short")
    assert store.pins.pinned_bytes("t") == 8 * PAGE
    store.pins.unpin("t", "long")
    assert store.pins.pinned_bytes("t") == 5 * PAGE
    flood(store)
    assert present(store, chain) == list(range(5))
    assert store.pins.unpin("t", "short")
    assert not store.pins.unpin("t", "short")
    assert store.pins.pinned_bytes() == 0
    flood(store)
    assert present(store, chain) == []


def test_a_pin_beyond_a_limit_is_refused_whole_and_changes_nothing(store: PrefixStore) -> None:
    """The store has 100 pages, so 25 for pins."""
    put(store, *make_chain(keys(26)), *make_chain(keys(20, 2)), *make_chain(keys(20, 3), tenant="u"))
    assert pin(store, keys(26)).obstacle is Obstacle.NEVER
    assert pin(store, keys(11), limit_pages=10).obstacle is Obstacle.NEVER
    assert pin(store, keys(10), "a", limit_pages=15).obstacle is None
    assert pin(store, keys(6, 2), "b", limit_pages=15).obstacle is Obstacle.QUOTA
    assert pin(store, keys(16, 3), "c", tenant="u").obstacle is Obstacle.FULL
    assert pin(store, keys(15, 3), "c", tenant="u").obstacle is None
    assert pin(store, keys(12), "a", limit_pages=15).obstacle is Obstacle.FULL
    assert store.pins.pinned_bytes("t") == 10 * PAGE
    assert store.pins.pinned_bytes() == 25 * PAGE
    assert sum(usage.pinned_records for usage in store.usage()) == 25
    flood(store)
    assert present(store, make_chain(keys(26))) == list(range(10))


def test_a_pin_of_the_same_id_is_replaced_and_only_the_difference_needs_room(store: PrefixStore) -> None:
    chain, other = make_chain(keys(20)), make_chain(keys(20, 2))
    put(store, *chain, *other)
    pin(store, keys(12), limit_pages=20)
    assert pin(store, keys(20), limit_pages=20).obstacle is None
    replaced = pin(store, keys(15, 2), limit_pages=20).replaced
    assert replaced is not None
    assert replaced.charged_bytes == 20 * PAGE
    assert store.pins.pinned_bytes() == 15 * PAGE
    flood(store)
    assert (present(store, chain), present(store, other)) == ([], list(range(15)))


def test_what_is_not_there_cannot_be_pinned(store: PrefixStore) -> None:
    chain = make_chain(keys(5))
    put(store, *chain[:2], *chain[3:])
    assert pin(store, keys(5)).run == (2, [])
    assert pin(store, keys(5, 2), "none").obstacle is Obstacle.ABSENT
    assert pin(store, keys(5), "theirs", tenant="u").obstacle is Obstacle.ABSENT
    assert store.pins.find("t", "none") is None


def test_a_pinned_record_goes_when_it_is_deleted_and_is_pinned_again_when_it_is_stored_again(
    store: PrefixStore,
) -> None:
    chain = make_chain(keys(4))
    put(store, *chain)
    pinned = pin(store, keys(4)).pin
    assert pinned is not None
    assert store.delete(chain[1].key)
    assert store.pins.present_records(pinned) == 3
    assert store.pins.pinned_bytes() == 4 * PAGE, "the room is kept"
    put(store, chain[1])
    assert store.pins.present_records(pinned) == 4
    flood(store)
    assert present(store, chain) == list(range(4))


def test_a_pinned_record_that_went_bad_is_served_no_more_and_its_successor_is_pinned(
    store: PrefixStore, disk: FaultyStore
) -> None:
    chain = make_chain(keys(4))
    put(store, *chain)
    pin(store, keys(4))
    disk.corrupt(chain[2].key)
    assert store.quarantine(chain[2].key)
    assert present(store, chain) == [0, 1, 3]
    put(store, chain[2])
    flood(store)
    assert present(store, chain) == list(range(4))


def test_what_is_stored_again_and_is_larger_is_not_pinned_so_that_no_limit_is_exceeded(store: PrefixStore) -> None:
    chain = make_chain(keys(3))
    put(store, *chain)
    pinned = pin(store, keys(3), limit_pages=3).pin
    assert pinned is not None
    store.delete(chain[2].key)
    put(store, make_chain(keys(3), payload=bytes(2 * PAGE))[2])
    assert store.pins.present_records(pinned) == 2
    assert store.pins.pinned_bytes() == 3 * PAGE
    flood(store)
    assert present(store, chain) == [0, 1]


def test_a_block_that_is_not_pinned_stays_for_the_pinned_state_at_its_key(store: PrefixStore) -> None:
    """As one that was found bad, and came back larger than the room that its pin kept."""
    chain = make_chain(keys(2))
    state = make_state(chain[1])
    put(store, *chain, state)
    pin(store, keys(2))
    store.delete(chain[1].key)
    put(store, make_chain(keys(2), payload=bytes(2 * PAGE))[1])
    flood(store)
    assert present(store, [*chain, state]) == [0, 1, 2]


def test_dropping_a_layout_takes_pinned_records_along(store: PrefixStore) -> None:
    chain = make_chain(keys(4))
    put(store, *chain)
    pin(store, keys(4))
    assert store.drop(tenant="t", layout=LAYOUT) == 4
    assert present(store, chain) == []


def test_a_deletion_that_the_disk_refuses_leaves_a_pinned_record_pinned(store: PrefixStore, disk: FaultyStore) -> None:
    chain = make_chain(keys(3))
    put(store, *chain)
    pin(store, keys(3))
    disk.fail_writes(OSError("the disk"))
    with pytest.raises(OSError, match="the disk"):
        store.delete(chain[2].key)
    flood(store)
    assert present(store, chain) == list(range(3))


def test_pinned_states_leave_history_its_half_and_pinned_history_leaves_states_their_tenth(
    store: PrefixStore,
) -> None:
    chain = make_chain(keys(12))
    put(store, *chain, make_state(chain[-1]), make_state(chain[0]), *loners(86))
    assert pin(store, keys(12)).obstacle is None
    for kind, left in (
        (Kind.STATE, {Kind.HISTORY: 50, Kind.STATE: 50}),
        (Kind.HISTORY, {Kind.HISTORY: 90, Kind.STATE: 10}),
    ):
        for first in (40, 60):
            put(store, *loners(90, first=first, kind=kind))
        assert {usage.kind: usage.charged_bytes // PAGE for usage in store.usage()} == left
    assert present(store, chain) == list(range(12))


def test_pins_are_known_before_a_smaller_capacity_evicts_and_those_that_do_not_fit_are_let_go() -> None:
    records = MemoryStore()
    store = PrefixStore(records, capacity_bytes=100 * PAGE)
    first, second, rest = make_chain(keys(10)), make_chain(keys(12, 2)), loners(70)
    put(store, *first, *second, *rest)
    pins = [pin(store, keys(10), "first").pin, pin(store, keys(12, 2), "second").pin]
    store.flush_uses()
    smaller = PrefixStore(records, capacity_bytes=40 * PAGE, pins=[each for each in pins if each])
    assert smaller.pins.find("t", "first") == pins[0]
    assert smaller.pins.find("t", "second") is None
    assert smaller.pins.pinned_bytes() == 10 * PAGE
    assert present(smaller, first) == list(range(10))
    assert present(smaller, second) == []
    assert smaller.charged_bytes <= 40 * PAGE
    assert smaller.check_integrity() == []
    smaller.close()


def test_a_pin_that_could_not_be_written_is_taken_back(store: PrefixStore) -> None:
    """As a service does that cannot keep the pin's document."""
    chain, other = make_chain(keys(4)), make_chain(keys(4, 2))
    put(store, *chain, *other)
    pin(store, keys(4))
    done = pin(store, keys(4, 2))
    assert done.replaced is not None
    store.pins.put_back(done.replaced)
    flood(store)
    assert (present(store, chain), present(store, other)) == (list(range(4)), [])


STEPS = st.lists(
    st.tuples(st.sampled_from(["pin", "pin", "unpin", "delete", "put", "touch"]), st.integers(0, 2), st.integers(1, 6)),
    min_size=5, max_size=40,
)  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(steps=STEPS)
def test_what_is_pinned_is_exactly_what_the_pins_in_force_name(steps: list[tuple[str, int, int]]) -> None:
    """Three chains that share their first two blocks, a pin for each; the oracle is a dictionary of sets."""
    store = PrefixStore(MemoryStore(), capacity_bytes=36 * PAGE, clock=ManualClock())
    paths = [keys(2, 9) + keys(4, chain) for chain in range(3)]
    chains = [make_chain(path) for path in paths]
    named: dict[str, set[bytes]] = {}
    for action, which, depth in steps:
        if action == "put":
            put(store, *chains[which][:depth])
        elif action == "delete":
            store.delete(chains[which][depth - 1].key)
        elif action == "touch":
            store.touch([chains[which][depth - 1].key])
        elif action == "unpin":
            assert store.pins.unpin("t", str(which)) is (named.pop(str(which), None) is not None)
        else:
            there = [
                key for key in paths[which][:depth] if store.exists([chains[which][paths[which].index(key)].key])[0]
            ]
            run = there if there == paths[which][: len(there)] else paths[which][: _gap(paths[which], there)]
            done = pin(store, paths[which][:depth], str(which), limit_pages=9)
            wanted = {**named, str(which): set(run)}
            fits = len(set().union(*wanted.values())) <= 9
            assert (done.obstacle is None) is (bool(run) and fits)
            named = wanted if done.obstacle is None else named
        assert store.pins.pinned_bytes() == PAGE * len(set().union(*named.values()))
        flood_one = loners(40, first=200)
        put(store, *flood_one)
        kept = set().union(*named.values())
        for chain in chains:
            for record in chain:
                is_there = store.exists([record.key])[0]
                assert not is_there or record.header.key in kept
        assert store.check_integrity() == []
    store.close()


def _gap(path: list[bytes], there: list[bytes]) -> int:
    return next(index for index, key in enumerate(path) if key not in there)
