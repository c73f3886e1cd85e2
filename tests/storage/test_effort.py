"""What making room costs, counted in calls of functions and not in seconds: the same however much there is."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.testing import LAYOUT, SECONDS, make_chain, make_put, make_record

PAGE = 4096
MANY = 400


def calls(work: Callable[[], object]) -> int:
    """How many Python functions this thread enters."""
    entered = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return entered


def full(records: list[NewRecord]) -> PrefixStore:
    store = PrefixStore(MemoryStore(), capacity_bytes=len(records) * PAGE)
    assert {str(result.outcome) for result in store.put(records).result(SECONDS)} == {"stored"}
    return store


def effort_of_a_put(store: PrefixStore) -> int:
    """Of the second of two, so that what a first one has to put in order does not count."""
    records = [make_record(key=bytes([250, index]) * 16, tenant="new") for index in range(2)]
    store.put(records[:1]).result(SECONDS)
    effort = calls(lambda: store.put(records[1:]).result(SECONDS))
    assert store.exists([record.key for record in records]) == [True, True]
    return effort


def loners(count: int, tenants: int = 1) -> list[NewRecord]:
    return [make_record(key=index.to_bytes(2, "big") * 16, tenant=f"t{index % tenants}") for index in range(count)]


@pytest.fixture(scope="module")
def usual() -> int:
    """The effort where there are few records."""
    store = full(loners(10))
    effort = effort_of_a_put(store)
    store.close()
    return effort


def test_many_records_and_tenants_make_a_put_no_dearer(usual: int) -> None:
    store = full(loners(MANY, tenants=MANY))
    assert effort_of_a_put(store) < 2 * usual
    store.close()


def test_old_records_that_are_read_make_a_put_no_dearer(usual: int) -> None:
    chain = make_chain([index.to_bytes(2, "big") * 16 for index in range(MANY)])
    store = full([*chain, *loners(10, tenants=2)])
    with store.hold([record.key for record in chain[MANY // 2 :]]):
        assert effort_of_a_put(store) < 2 * usual
    store.close()


def test_5000_pinned_records_older_than_all_others_make_a_put_no_dearer(usual: int) -> None:
    """The put evicts, and what it may not take stands in no order that it would have to search."""
    keys = [index.to_bytes(2, "big") * 16 for index in range(5000)]
    store = PrefixStore(MemoryStore(), capacity_bytes=20_000 * PAGE)
    filler = make_record(key=bytes(32), tenant="filler", payload=bytes(14_990 * PAGE - 144))
    assert len(set(store.put([*make_chain(keys), *loners(10), filler]).result(SECONDS))) == 1
    assert store.charged_bytes == store.capacity_bytes
    pinned = store.pins.pin(
        tenant="t", layout=LAYOUT, pin_id="p", keys=keys, block_tokens=128, limit_bytes=store.capacity_bytes
    )
    assert (pinned.obstacle, pinned.run.history_blocks) == (None, 5000)
    assert effort_of_a_put(store) < 2 * usual
    assert sum(usage.evicted_records for usage in store.usage()) == 2
    store.close()


def test_a_large_batch_costs_as_much_a_record_as_a_small_one() -> None:
    efforts = []
    for count in (50, MANY):
        store, batch = full(loners(MANY)), [make_record(key=index.to_bytes(4, "big") * 8) for index in range(count)]
        efforts.append(calls(lambda: store.put(batch).result(SECONDS)) / count)  # noqa: B023 - called at once
        store.close()
    assert efforts[1] < 2 * efforts[0]


def test_ancestors_whose_recency_was_lost_make_a_put_no_dearer_and_are_as_fresh_as_what_follows(usual: int) -> None:
    """As a service leaves it that is killed: each block's last use is on disk, but not that it counts for others."""
    records, chain = MemoryStore(), make_chain([index.to_bytes(2, "big") * 16 for index in range(MANY)])
    puts = [make_put(block, now=float(index)) for index, block in enumerate(chain)]
    records.write(puts).result(SECONDS)
    store = PrefixStore(records, capacity_bytes=MANY * PAGE)
    first = store.entry(chain[0].key)
    assert first is not None
    assert first.last_used == MANY - 1
    assert effort_of_a_put(store) < 2 * usual
    store.close()
