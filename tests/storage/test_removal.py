"""Uses, idle time, deletion and quarantine; and what each leaves behind."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import LAYOUT, SECONDS, FaultyStore, ManualClock, make_chain, make_record, make_state

KEYS = [bytes([index + 1]) * 32 for index in range(6)]
CHAIN = make_chain(KEYS)
HISTORY_KEYS = [record.key for record in CHAIN]


def depth(store: PrefixStore, tenant: str = "t") -> int:
    return store.longest_run(tenant=tenant, layout=LAYOUT, keys=KEYS, block_tokens=128).history_blocks


def test_a_use_counts_for_the_record_and_its_recency_for_the_ancestors(store: PrefixStore, clock: ManualClock) -> None:
    store.put(CHAIN).result(SECONDS)
    clock.advance(100)
    absent = HISTORY_KEYS[0]._replace(key=bytes(32))
    assert store.touch([HISTORY_KEYS[3], HISTORY_KEYS[3], absent]) == 1
    entries = [store.entry(key) for key in HISTORY_KEYS]
    assert [entry and entry.uses for entry in entries] == [0, 0, 0, 1, 0, 0]
    assert [entry and entry.last_used - clock.now for entry in entries] == [0, 0, 0, 0, -100, -100]
    (usage,) = store.usage("t")
    assert (usage.uses, usage.reused_records, usage.latest_use) == (1, 1, clock.now)
    assert usage.oldest_created == clock.now - 100


def test_idle_records_expire_leaves_first_by_last_use_and_not_by_age(store: PrefixStore, clock: ManualClock) -> None:
    state = make_state(CHAIN[1])
    store.put([*CHAIN, state]).result(SECONDS)
    clock.advance(100)
    store.touch([HISTORY_KEYS[2]])
    clock.advance(50)
    assert store.expire(tenant="t", idle_seconds=200) == 0
    assert store.expire(tenant="other", idle_seconds=0) == 0
    assert store.expire(tenant="t", idle_seconds=100) == 4
    assert (depth(store), store.exists([state.key])) == (3, [False])
    clock.advance(51)
    assert store.expire(tenant="t", idle_seconds=100) == 3
    assert depth(store) == 0
    assert {usage.kind: usage.expired_records for usage in store.usage()} == {Kind.HISTORY: 6, Kind.STATE: 1}


def test_what_is_held_does_not_expire_and_neither_do_its_ancestors(store: PrefixStore, clock: ManualClock) -> None:
    store.put(CHAIN).result(SECONDS)
    clock.advance(100)
    with store.hold(HISTORY_KEYS[3:4]):
        assert store.expire(tenant="t", idle_seconds=1) == 2
        assert depth(store) == 4
        clock.advance(2)
        assert store.expire(tenant="t", idle_seconds=1) == 0
    assert store.expire(tenant="t", idle_seconds=1) == 4


def test_a_clock_that_goes_back_makes_nobody_younger(store: PrefixStore, clock: ManualClock) -> None:
    store.put(CHAIN).result(SECONDS)
    clock.advance(-50)
    store.touch(HISTORY_KEYS)
    entry = store.entry(HISTORY_KEYS[0])
    assert entry is not None
    assert entry.last_used == clock.now + 50


def test_delete_removes_that_record_alone(store: PrefixStore) -> None:
    state = make_state(CHAIN[2])
    store.put([*CHAIN, state]).result(SECONDS)
    assert store.delete(HISTORY_KEYS[2])
    assert not store.delete(HISTORY_KEYS[2])
    assert depth(store) == 2
    assert store.exists([HISTORY_KEYS[3], state.key]) == [True, True]
    assert store.charged_bytes == 6 * 4096
    assert {usage.kind: usage.deleted_records for usage in store.usage()} == {Kind.HISTORY: 1, Kind.STATE: 0}
    store.put(CHAIN[2:3]).result(SECONDS)
    assert depth(store) == 6


def test_a_held_record_that_is_deleted_is_a_miss_at_once(store: PrefixStore) -> None:
    store.put(CHAIN).result(SECONDS)
    with store.hold(HISTORY_KEYS[:1]):
        assert store.delete(HISTORY_KEYS[0])
        assert store.get(HISTORY_KEYS[0]) is None
    store.put(CHAIN[:1]).result(SECONDS)
    assert depth(store) == 6


def test_dropping_takes_a_layout_or_a_whole_tenant_and_nobody_else(store: PrefixStore) -> None:
    other_layout = make_record(key=KEYS[0], layout=bytes(32))
    store.put([*CHAIN, other_layout, *make_chain(KEYS, tenant="u")]).result(SECONDS)
    assert store.drop(tenant="t", layout=LAYOUT) == 6
    assert (depth(store), store.exists([other_layout.key])) == (0, [True])
    assert store.drop(tenant="t") == 1
    assert store.usage("t") == []
    assert depth(store, tenant="u") == 6
    assert store.drop(tenant="nobody") == 0


def test_a_dropped_layout_leaves_no_totals_and_its_tenants_others_stay(store: PrefixStore) -> None:
    other_layout = make_record(key=KEYS[0], layout=bytes(32))
    store.put([*CHAIN, make_state(CHAIN[0]), other_layout, *make_chain(KEYS, tenant="u")]).result(SECONDS)
    store.drop(tenant="t", layout=LAYOUT)
    assert [(usage.tenant, usage.layout) for usage in store.usage()] == [("t", bytes(32)), ("u", LAYOUT)]
    store.put(CHAIN[:2]).result(SECONDS)
    totals = [(usage.records, usage.deleted_records) for usage in store.usage("t") if usage.layout == LAYOUT]
    assert totals == [(2, 0)]


def test_dropping_waits_for_what_is_being_written(store: PrefixStore, disk: FaultyStore) -> None:
    disk.pause()
    done = store.put(CHAIN)
    with ThreadPoolExecutor(1) as pool:
        dropped = pool.submit(store.drop, tenant="t")
        wait([dropped], timeout=0.1)
        disk.resume()
        assert dropped.result(SECONDS) == 6
    assert {str(result.outcome) for result in done.result(SECONDS)} == {"stored"}
    assert store.exists(HISTORY_KEYS) == [False] * 6


def test_where_the_disk_refuses_a_deletion_the_record_is_still_there(store: PrefixStore, disk: FaultyStore) -> None:
    store.put(CHAIN).result(SECONDS)
    disk.fail_writes(StoreUnreadable("broken"))
    with pytest.raises(StoreUnreadable, match="broken"):
        store.drop(tenant="t")
    assert depth(store) == 6
    assert store.charged_bytes == 6 * 4096


def test_a_sound_record_is_not_quarantined_and_a_bad_one_is_served_no_more(
    store: PrefixStore, disk: FaultyStore
) -> None:
    store.put(CHAIN).result(SECONDS)
    assert not store.quarantine(HISTORY_KEYS[2])
    assert not store.quarantine(HISTORY_KEYS[2]._replace(tenant="nobody"))
    disk.corrupt(HISTORY_KEYS[2])
    assert store.quarantine(HISTORY_KEYS[2])
    assert (depth(store), store.get(HISTORY_KEYS[2])) == (2, None)
    assert [usage.quarantined_records for usage in store.usage()] == [1]
    assert [str(result.outcome) for result in store.put(CHAIN).result(SECONDS)] == [
        "present",
        "present",
        "stored",
        "present",
        "present",
        "present",
    ]


def test_a_further_check_can_find_a_record_bad(store: PrefixStore) -> None:
    store.put(CHAIN).result(SECONDS)
    assert not store.quarantine(HISTORY_KEYS[5], verify=lambda data: data.endswith(b"payload"))
    assert store.quarantine(HISTORY_KEYS[5], verify=lambda data: data.endswith(b"something else"))
    assert depth(store) == 5


def test_a_bad_record_is_not_served_even_where_the_disk_refuses_to_delete_it(
    store: PrefixStore, disk: FaultyStore
) -> None:
    (record,) = make_chain(KEYS[:1])
    store.put([record]).result(SECONDS)
    disk.corrupt(record.key)
    disk.fail_writes(StoreUnreadable("broken"))
    with pytest.raises(StoreUnreadable):
        store.quarantine(record.key)
    assert store.get(record.key) is None
    assert [str(result.outcome) for result in store.put([record]).result(SECONDS)] == ["stored"]


def test_usage_adds_up(store: PrefixStore) -> None:
    state = make_state(CHAIN[0], payload=bytes(5000))
    store.put([*CHAIN, state]).result(SECONDS)
    by_kind = {
        usage.kind: (usage.records, usage.raw_bytes, usage.stored_bytes, usage.charged_bytes)
        for usage in store.usage("t")
    }
    assert by_kind == {Kind.HISTORY: (6, 42, 6 * 135, 6 * 4096), Kind.STATE: (1, 5000, 5128, 8192)}
    assert store.charged_bytes == 6 * 4096 + 8192


def test_the_recency_of_uses_is_written_and_not_lost_where_the_disk_refuses(
    store: PrefixStore, disk: FaultyStore, clock: ManualClock
) -> None:
    store.put(CHAIN).result(SECONDS)
    clock.advance(10)
    store.touch(HISTORY_KEYS[4:5])
    disk.fail_writes(StoreUnreadable("broken"))
    with pytest.raises(StoreUnreadable):
        store.flush_uses()
    store.flush_uses()
    on_disk = dict(disk.scan())
    assert [on_disk[key].last_used == clock.now for key in HISTORY_KEYS] == [True] * 5 + [False]
    assert on_disk[HISTORY_KEYS[4]].uses == 1
