"""What becomes of records that are put: one outcome each, whatever their neighbours, the disk and other writers do."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.errors import StoreClosed, StoreFull, StoreUnreadable
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, Outcome, PrefixStore
from kvcairn_storage.store import Put, RecordKey
from kvcairn_storage.testing import SECONDS, FaultyStore, make_chain, make_record, make_state

KEYS = [bytes([index + 1]) * 32 for index in range(8)]


def outcomes(store: PrefixStore, records: list[NewRecord], quota_bytes: int | None = None) -> list[str]:
    return [str(result.outcome) for result in store.put(records, quota_bytes=quota_bytes).result(SECONDS)]


def test_records_of_every_kind_are_stored_and_come_back(store: PrefixStore) -> None:
    (block,) = make_chain(KEYS[:1])
    records = [block, make_state(block), make_state(block, kind=Kind.WINDOW)]
    assert outcomes(store, records) == ["stored"] * 3
    assert [store.get(record.key) for record in records] == [b"".join(record.data) for record in records]


def test_putting_nothing_is_done_at_once(store: PrefixStore) -> None:
    assert store.put([]).result(0) == []


def test_a_second_put_of_the_same_is_present_also_within_one_batch(store: PrefixStore) -> None:
    chain = make_chain(KEYS[:3])
    assert outcomes(store, [*chain, *chain]) == ["stored"] * 3 + ["present"] * 3
    assert outcomes(store, chain) == ["present"] * 3


def test_the_first_writer_wins(store: PrefixStore) -> None:
    first = make_record(key=KEYS[0], payload=b"first")
    assert outcomes(store, [first, make_record(key=KEYS[0], payload=b"second")]) == ["stored", "present"]
    assert store.get(first.key) == b"".join(first.data)


@pytest.mark.parametrize("other", [{"position": 256, "parent": b"p" * 16}, {"position": 128, "parent": b"p" * 16}])
def test_the_same_key_at_another_place_is_a_conflict_and_harms_nobody(
    store: PrefixStore, other: dict[str, object]
) -> None:
    record = make_record(key=KEYS[0])
    assert outcomes(store, [record]) == ["stored"]
    assert outcomes(store, [make_record(key=KEYS[0], **other), *make_chain(KEYS[1:3])]) == [
        "conflict",
        "stored",
        "stored",
    ]
    assert store.get(record.key) == b"".join(record.data)


def test_a_block_must_stand_one_block_after_its_parent(store: PrefixStore) -> None:
    chain = make_chain(KEYS[:2])
    too_far = make_record(key=KEYS[3], position=512, parent=KEYS[0][:16])
    assert outcomes(store, [chain[0], too_far, chain[1]]) == ["stored", "parent", "stored"]


def test_an_unknown_parent_is_allowed_and_may_come_later(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    assert outcomes(store, chain[::-1]) == ["stored"] * len(KEYS)
    assert store.longest_run(tenant="t", layout=chain[0].key.layout, keys=KEYS, block_tokens=128).history_blocks == 8


def test_a_first_block_has_no_parent_whatever_lies_at_the_zero_key(store: PrefixStore) -> None:
    zero = make_record(key=bytes(16) + b"z" * 16, position=256, parent=b"p" * 16)
    assert outcomes(store, [zero, *make_chain(KEYS[:2])]) == ["stored"] * 3


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.WINDOW])
def test_what_contradicts_its_stored_block_is_a_conflict_and_keeps_nothing_out(store: PrefixStore, kind: Kind) -> None:
    chain = make_chain(KEYS[:2])
    elsewhere = make_record(key=KEYS[1], position=384, parent=KEYS[0][:16], kind=kind)
    stranger = make_record(key=KEYS[1], position=256, parent=KEYS[5][:16], kind=kind)
    right = make_record(key=KEYS[1], position=256, parent=KEYS[0][:16], kind=kind)
    assert outcomes(store, [*chain, elsewhere, stranger, right]) == [
        "stored",
        "stored",
        "conflict",
        "conflict",
        "stored",
    ]


def test_a_state_and_an_unchained_record_need_no_parent(store: PrefixStore) -> None:
    chain = make_chain(KEYS[:1])
    state = make_record(key=KEYS[1], position=640, parent=KEYS[0][:16], kind=Kind.STATE)
    lone = [make_record(key=key, position=0, block_tokens=0, layout=bytes(32)) for key in KEYS]
    assert outcomes(store, [*chain, state, *lone]) == ["stored"] * 10


def test_tenants_do_not_see_each_other(store: PrefixStore) -> None:
    mine, theirs = make_record(key=KEYS[0], payload=b"mine"), make_record(key=KEYS[0], tenant="u", payload=b"theirs")
    assert outcomes(store, [mine, theirs]) == ["stored", "stored"]
    assert (store.get(mine.key), store.get(theirs.key)) == (b"".join(mine.data), b"".join(theirs.data))


def test_what_can_never_fit_is_told_from_what_does_not_fit_now(store: PrefixStore) -> None:
    large = make_record(key=KEYS[0], payload=bytes(100 * 4096))
    small, other = make_record(key=KEYS[1]), make_record(key=KEYS[2])
    assert store.put([large, small]).result(SECONDS) == [(Outcome.FULL, False), (Outcome.STORED, True)]
    assert store.put([large], quota_bytes=50 * 4096).result(SECONDS) == [(Outcome.QUOTA, False)]
    with store.hold([small.key]):
        assert store.put([other], quota_bytes=4096).result(SECONDS) == [(Outcome.QUOTA, True)]
    assert store.put([other], quota_bytes=4096).result(SECONDS) == [(Outcome.STORED, True)]
    assert store.exists([small.key, other.key]) == [False, True]


def test_a_corrupt_record_is_replaced_by_the_next_that_is_put(store: PrefixStore, disk: FaultyStore) -> None:
    record = make_record(key=KEYS[0])
    assert outcomes(store, [record]) == ["stored"]
    disk.corrupt(record.key)
    assert outcomes(store, [record]) == ["stored"]
    assert store.get(record.key) == b"".join(record.data)
    assert store.usage()[0].quarantined_records == 1
    assert outcomes(store, [record]) == ["present"]


def test_nothing_is_seen_before_it_is_committed(store: PrefixStore, disk: FaultyStore) -> None:
    (block, *_) = chain = make_chain(KEYS)
    disk.pause()
    done = store.put(chain)
    assert not done.done()
    assert (store.get(block.key), store.entry(block.key), store.exists([block.key])) == (None, None, [False])
    assert store.longest_run(tenant="t", layout=block.key.layout, keys=KEYS, block_tokens=128) == (0, [])
    assert store.hold([block.key]).entries == [None]
    assert store.touch([block.key]) == 0
    assert store.charged_bytes == len(KEYS) * 4096
    disk.resume()
    assert {result.outcome for result in done.result(SECONDS)} == {Outcome.STORED}
    assert store.exists([block.key]) == [True]


def test_a_second_writer_of_a_key_waits_for_the_first(store: PrefixStore, disk: FaultyStore) -> None:
    record = make_record(key=KEYS[0])
    disk.pause()
    first, second = store.put([record]), store.put([record, make_record(key=KEYS[1])])
    assert not second.done()
    disk.resume()
    assert first.result(SECONDS) == [(Outcome.STORED, True)]
    assert second.result(SECONDS) == [(Outcome.PRESENT, True), (Outcome.STORED, True)]


def test_what_is_on_its_way_out_can_be_put_again(store: PrefixStore, disk: FaultyStore) -> None:
    old = [make_record(key=bytes([200, index]) * 16) for index in range(100)]
    outcomes(store, old)
    disk.pause()
    first, again = store.put([make_record(key=KEYS[0])]), store.put(old[:1])
    assert not again.done()
    disk.resume()
    assert first.result(SECONDS) == again.result(SECONDS) == [(Outcome.STORED, True)]
    assert store.exists([old[0].key, old[1].key]) == [True, False]


def test_a_second_writer_tries_itself_where_the_first_failed(store: PrefixStore, disk: FaultyStore) -> None:
    record = make_record(key=KEYS[0])
    disk.pause()
    first, second = store.put([record]), store.put([record])
    disk.fail_writes(StoreUnreadable("the disk is on fire"))
    disk.resume()
    with pytest.raises(StoreUnreadable, match="on fire"):
        first.result(SECONDS)
    assert second.result(SECONDS) == [(Outcome.STORED, True)]


def test_a_full_disk_refuses_one_record_and_not_its_neighbours(store: PrefixStore, disk: FaultyStore) -> None:
    disk.fail_writes(StoreFull("no space"), StoreFull("no space"))  # all together, then the first alone
    assert outcomes(store, make_chain(KEYS[:3])) == ["full", "stored", "stored"]
    assert store.charged_bytes == 2 * 4096


def test_a_full_disk_makes_old_records_go_until_the_new_one_fits(store: PrefixStore, disk: FaultyStore) -> None:
    old = make_chain(KEYS[:4])
    outcomes(store, old)
    disk.fail_writes(StoreFull("no space"))
    assert outcomes(store, [make_record(key=KEYS[7])]) == ["stored"]
    assert store.exists([record.key for record in old]) == [True, True, True, False]


def test_what_should_have_gone_is_served_again_where_the_disk_refused(store: PrefixStore, disk: FaultyStore) -> None:
    old = [make_record(key=bytes([200, index]) * 16) for index in range(100)]
    outcomes(store, old)
    disk.pause()
    done = store.put(make_chain(KEYS[:3]))
    assert sum(store.exists([record.key for record in old])) == 97
    disk.fail_writes(*[StoreUnreadable("broken")] * 4)  # all together, then each alone
    disk.resume()
    assert isinstance(done.exception(SECONDS), StoreUnreadable)
    assert sum(store.exists([record.key for record in old])) == 100
    assert outcomes(store, make_chain(KEYS[:1])) == ["stored"]
    assert store.exists([old[0].key, old[1].key]) == [False, True]


def test_small_records_wait_for_the_room_that_a_large_one_leaves(store: PrefixStore, disk: FaultyStore) -> None:
    large = [make_record(key=bytes([200, index]) * 16, payload=bytes(40000)) for index in range(10)]
    assert outcomes(store, large) == ["stored"] * 10
    disk.pause()
    done = store.put(make_chain(KEYS))
    assert store.charged_bytes <= store.capacity_bytes
    disk.resume()
    assert [str(result.outcome) for result in done.result(SECONDS)] == ["stored"] * 8
    assert store.exists([record.key for record in large]) == [False] + [True] * 9


def test_putting_into_a_closed_store_says_so(disk: FaultyStore) -> None:
    store = PrefixStore(disk, capacity_bytes=1 << 20)
    record = make_record(key=KEYS[0])
    outcomes(store, [record])
    store.close()
    assert isinstance(store.put([make_record(key=KEYS[1])]).exception(SECONDS), StoreClosed)
    assert isinstance(store.put([record]).exception(SECONDS), StoreClosed)


def test_nobody_can_cancel_a_put_under_the_store(store: PrefixStore, disk: FaultyStore) -> None:
    """A cancelled answer would be one more way to fail where others wait for the same write."""
    record = make_record(key=KEYS[0])
    disk.pause()
    first, second = store.put([record]), store.put([record])
    assert not first.cancel()
    assert not second.cancel()
    with ThreadPoolExecutor(1) as pool:
        deleted = pool.submit(store.delete, record.key)
        wait([deleted], timeout=0.1)
        disk.resume()
        assert deleted.result(SECONDS)
    assert first.result(SECONDS) == [(Outcome.STORED, True)]


class Buggy(FaultyStore):
    """A disk whose second write raises where it should fail its future."""

    writes = 0

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        self.writes += 1
        if self.writes == 2:
            raise ValueError("a bug")
        return super().write(puts, deletes)


def test_one_who_waits_for_a_write_and_fails_keeps_no_other_waiting() -> None:
    disk, record = Buggy(MemoryStore()), make_record(key=KEYS[0])
    store = PrefixStore(disk, capacity_bytes=100 * 4096)
    disk.pause()
    first, again = store.put([record]), store.put([record])
    with ThreadPoolExecutor(1) as pool:
        deleted = pool.submit(store.delete, record.key)
        wait([deleted], timeout=0.1)
        disk.fail_writes(StoreUnreadable("broken"))
        disk.resume()
        assert isinstance(first.exception(SECONDS), StoreUnreadable)
        assert not deleted.result(SECONDS)
    with pytest.raises(ValueError, match="a bug"):
        again.result(SECONDS)
    assert (store.charged_bytes, store.check_integrity()) == (0, [])
    store.close()
