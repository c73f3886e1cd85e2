"""What goes when room is short: windows, then states and history leaves by recency, within the guaranteed shares."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcairn_protocol.layout import Kind
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.testing import SECONDS, ManualClock, make_chain, make_record, make_state

PAGE = 4096


def keys(count: int, first: int = 1) -> list[bytes]:
    return [bytes([first, index]) * 16 for index in range(count)]


def put(store: PrefixStore, *records: NewRecord, quota_bytes: int | None = None) -> list[str]:
    return [str(result.outcome) for result in store.put(records, quota_bytes=quota_bytes).result(SECONDS)]


def present(store: PrefixStore, records: list[NewRecord]) -> list[int]:
    """The indices of what is still there."""
    return [index for index, there in enumerate(store.exists([record.key for record in records])) if there]


def loners(count: int, first: int = 100, kind: Kind = Kind.HISTORY, tenant: str = "t") -> list[NewRecord]:
    return [make_record(key=key, kind=kind, tenant=tenant) for key in keys(count, first)]


def test_window_records_go_first_however_fresh(store: PrefixStore) -> None:
    old, windows = loners(98), loners(2, first=50, kind=Kind.WINDOW)
    put(store, *old, *windows)
    put(store, *loners(2, first=60))
    assert present(store, windows) == []
    assert len(present(store, old)) == 98
    put(store, *loners(1, first=61))
    assert present(store, old) == list(range(1, 98))


def test_the_least_recently_used_leaf_goes_and_never_a_block_before_its_descendants(store: PrefixStore) -> None:
    chain = make_chain(keys(99))
    put(store, *chain)
    put(store, *loners(11))
    assert present(store, chain) == list(range(89))


def test_using_a_leaf_keeps_all_of_its_ancestors(store: PrefixStore) -> None:
    first, second = make_chain(keys(50, 1)), make_chain(keys(50, 2))
    put(store, *first, *second)
    store.touch([first[-1].key])
    put(store, *loners(40))
    assert present(store, first) == list(range(50))
    assert present(store, second) == list(range(10))


def test_the_state_and_window_of_a_block_go_with_it(store: PrefixStore) -> None:
    (block,) = make_chain(keys(1))
    state, late = make_state(block), loners(99)
    put(store, block, *late[:98], state)
    put(store, late[98])
    assert present(store, [block, state]) == []
    assert len(present(store, late)) == 99


def test_the_entry_stored_last_never_evicts_the_prefix_that_it_needs(store: PrefixStore) -> None:
    chain = make_chain(keys(101))
    for block in chain[:100]:
        assert put(store, block) == ["stored"]
    assert put(store, chain[100]) == ["full"]
    assert present(store, chain) == list(range(100))


def test_a_state_never_evicts_the_block_at_its_own_key(store: PrefixStore) -> None:
    chain = make_chain(keys(100))
    put(store, *chain)
    assert put(store, make_state(chain[-1])) == ["full"]
    assert put(store, make_state(chain[50])) == ["stored"]
    assert present(store, chain) == list(range(99))


def test_no_record_of_a_batch_displaces_another_of_it(store: PrefixStore) -> None:
    chain = make_chain(keys(60))
    states = [make_state(block) for block in chain]
    outcomes = put(store, *chain, *states)
    assert outcomes == ["stored"] * 100 + ["full"] * 20
    assert present(store, chain) == list(range(60))


def test_what_was_there_already_is_not_displaced_by_the_rest_of_its_batch(store: PrefixStore) -> None:
    put(store, *loners(100))
    assert put(store, loners(1)[0], *loners(100, first=7)) == ["present"] + ["stored"] * 99 + ["full"]
    assert present(store, loners(100)) == [0]


def test_states_may_take_from_history_only_down_to_its_half(store: PrefixStore) -> None:
    history = loners(100)
    put(store, *history)
    put(store, *loners(70, first=3, kind=Kind.STATE))
    assert len(present(store, history)) == 50
    kept = present(store, loners(70, first=3, kind=Kind.STATE))
    assert len(kept) == 50


def test_history_may_take_from_states_only_down_to_their_tenth(store: PrefixStore) -> None:
    states = loners(100, kind=Kind.STATE)
    put(store, *states)
    for record in loners(120, first=3):
        put(store, record)
    assert len(present(store, states)) == 10
    assert present(store, loners(120, first=3)) == list(range(30, 120))


def test_a_kind_below_its_share_takes_from_the_other_although_its_own_is_older(store: PrefixStore) -> None:
    old, states = loners(5), loners(95, first=3, kind=Kind.STATE)
    put(store, *old, *states)
    put(store, *loners(45, first=4))
    assert len(present(store, old)) == 5
    assert len(present(store, states)) == 50
    put(store, *loners(1, first=5))
    assert present(store, old) == [1, 2, 3, 4]


def test_above_their_shares_the_older_of_both_kinds_goes(store: PrefixStore) -> None:
    states, history = loners(30, first=3, kind=Kind.STATE), loners(70)
    put(store, *states[:15], *history, *states[15:])
    put(store, *loners(16, first=4))
    assert len(present(store, states)) == 15
    assert len(present(store, history)) == 69


def test_over_its_quota_only_the_tenants_own_records_go(store: PrefixStore) -> None:
    theirs, mine = loners(20, tenant="other"), loners(10)
    put(store, *theirs, *mine)
    assert put(store, *loners(4, first=3), quota_bytes=10 * PAGE) == ["stored"] * 4
    assert len(present(store, theirs)) == 20
    assert present(store, mine) == [4, 5, 6, 7, 8, 9]


def test_a_lowered_quota_is_reached_with_the_next_record(store: PrefixStore) -> None:
    put(store, *loners(50))
    assert put(store, *loners(1, first=3), quota_bytes=10 * PAGE) == ["stored"]
    assert store.charged_bytes == 10 * PAGE


def test_between_tenants_the_least_recently_used_goes(store: PrefixStore) -> None:
    first, second = loners(50, tenant="a"), loners(50, tenant="b")
    put(store, *first, *second)
    store.touch([record.key for record in first[:10]])
    put(store, *loners(60, tenant="c", first=3))
    assert present(store, first) == list(range(10))
    assert present(store, second) == list(range(20, 50))


def test_what_is_held_stays_and_so_do_its_ancestors(store: PrefixStore) -> None:
    chain = make_chain(keys(100))
    put(store, *chain)
    with store.hold([chain[98].key, chain[3].key, chain[98].key]) as hold:
        assert [entry is not None for entry in hold.entries] == [True] * 3
        assert put(store, *loners(2)) == ["stored", "full"]
        assert store.held_records == 3
    assert store.held_records == 0
    hold.release()
    assert put(store, *loners(2, first=5)) == ["stored", "stored"]


def test_what_was_held_is_as_fresh_as_what_was_just_used_and_so_are_its_ancestors(store: PrefixStore) -> None:
    chain, rest = make_chain(keys(10)), loners(90)
    put(store, *chain, *rest)
    with store.hold([chain[4].key]):
        pass
    put(store, *loners(95, first=3))
    assert (present(store, chain), present(store, rest)) == (list(range(5)), [])
    assert {usage.uses for usage in store.usage()} == {0}


def test_a_held_state_keeps_its_block(store: PrefixStore) -> None:
    (block,) = make_chain(keys(1))
    state = make_state(block)
    put(store, block, state, *loners(98))
    with store.hold([state.key]):
        put(store, *loners(50, first=3))
        assert present(store, [block, state]) == [0, 1]


def test_forged_parents_make_no_cycle(store: PrefixStore) -> None:
    a, b = keys(2)
    cycle = [
        make_record(key=a, position=256, parent=b[:16]),
        make_record(key=b, position=256, parent=a[:16]),
        make_record(key=keys(3)[2], position=256, parent=keys(3)[2][:16]),
    ]
    assert put(store, *cycle) == ["stored", "parent", "stored"]
    assert store.touch([record.key for record in cycle]) == 2
    assert put(store, *loners(100)) == ["stored"] * 100


def test_evictions_are_counted_by_kind(store: PrefixStore) -> None:
    put(store, *loners(90), *loners(10, first=3, kind=Kind.WINDOW))
    put(store, *loners(15, first=4))
    by_kind = {usage.kind: (usage.evicted_records, usage.evicted_bytes) for usage in store.usage("t")}
    assert by_kind == {Kind.HISTORY: (5, 5 * 135), Kind.WINDOW: (10, 10 * 135)}


CHAINS = 6
SPOTS = st.tuples(st.integers(0, CHAINS - 1), st.integers(0, 11), st.sampled_from(list(Kind)))
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "touch"]), SPOTS), min_size=30, max_size=120)


def spot(chain: int, depth: int, kind: Kind) -> NewRecord:
    """Chains of 12 blocks; odd ones branch off the even one before them after four blocks."""
    names = [(chain if at >= 4 else chain // 2 * 2, at) for at in range(depth + 1)]
    path = [bytes([1 + owner, at]) * 16 for owner, at in names]
    block = make_chain(path)[-1]
    return block if kind is Kind.HISTORY else make_state(block, kind=kind, payload=bytes(5000))


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, capacity=st.integers(3, 30))
def test_no_block_goes_before_its_descendants_and_nothing_exceeds_the_capacity(
    steps: list[tuple[str, tuple[int, int, Kind]]], capacity: int
) -> None:
    """Whatever the order of stores and uses; the tree is read from the headers, and eviction from what is gone."""
    clock = ManualClock()
    store = PrefixStore(MemoryStore(), capacity_bytes=capacity * PAGE, clock=clock)
    known: dict[tuple[bytes, int], NewRecord] = {}
    for action, where in steps:
        record = spot(*where)
        before = {at for at, old in known.items() if store.exists([old.key]) == [True]}
        clock.advance(1)
        if action == "touch":
            store.touch([record.key])
        elif put(store, record) == ["stored"]:
            known[record.header.key, record.header.kind] = record
        after = {at for at, old in known.items() if store.exists([old.key]) == [True]}
        for at in before - after:
            gone = known[at].header
            heirs = [known[other].header for other in after]
            assert not any(
                heir.kind is Kind.HISTORY and heir.parent == gone.key[:16] and gone.kind is Kind.HISTORY
                for heir in heirs
            )
            assert not any(heir.key == gone.key and gone.kind is Kind.HISTORY for heir in heirs)
        assert store.charged_bytes <= capacity * PAGE
        assert store.check_integrity() == []
    store.close()
