"""Space under many threads, watched by one that looks at the accounting and at the disk all the while."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import LAYOUT, SECONDS, FaultyStore, make_chain, make_record, make_state
from watching import watching

PAGE = 4096
BLOCK = 128
WRITERS = 4
CAPACITY_BYTES, QUOTA_BYTES, PIN_QUOTA_BYTES = 60 * PAGE, 25 * PAGE, 6 * PAGE


@pytest.fixture
def records(tmp_path: Path) -> LmdbStore:
    return LmdbStore(tmp_path / "data", map_bytes=64 << 20)


def on_disk_bytes(records: LmdbStore) -> Counter[str]:
    """What lies there, by tenant and in all: whole pages for payload, header of 128 bytes, and 16 bytes of LMDB's."""
    sums: Counter[str] = Counter()
    for key, entry in records.scan():
        pages = -(-(entry.stored_bytes + 128 + 16) // PAGE)
        sums[key.tenant] += pages * PAGE
        sums["all"] += pages * PAGE
    return sums


@pytest.mark.parametrize("steps", [40, pytest.param(1000, marks=pytest.mark.torture)])
def test_at_no_moment_are_capacity_quotas_or_pins_exceeded_by_a_byte(records: LmdbStore, steps: int) -> None:
    store = PrefixStore(records, capacity_bytes=CAPACITY_BYTES)
    most: Counter[str] = Counter()

    def look() -> None:
        sums = on_disk_bytes(records) | Counter(
            charged=store.charged_bytes, pinned=store.pins.pinned_bytes(), pinned_by_a=store.pins.pinned_bytes("a")
        )
        kept = {usage.tenant: usage.charged_bytes for usage in store.usage() if usage.kind is Kind.HISTORY}
        most.update(dict.fromkeys(sums, 0))
        for name, size_bytes in sums.items():
            most[name] = max(most[name], size_bytes)
        most["kept_by_a"] = max(most["kept_by_a"], kept.get("a", 0))

    def write(seed: int) -> Counter[str]:
        dice, outcomes, tenant = random.Random(seed), Counter[str](), "ab"[seed % 2]
        for step in range(steps):
            keys = [bytes([seed + 1, step // 256, step % 256, depth]) * 8 for depth in range(3)]
            chain = make_chain(keys, tenant=tenant, payload=bytes(dice.randrange(2 * PAGE)))
            state = make_state(chain[-1], payload=bytes(dice.randrange(4 * PAGE)))
            quota_bytes = QUOTA_BYTES if tenant == "a" else None
            outcomes.update(
                str(each.outcome) for each in store.put([*chain, state], quota_bytes=quota_bytes).result(SECONDS)
            )
            if dice.random() < 0.5:
                done = store.pins.pin(
                    tenant=tenant, layout=LAYOUT, pin_id=str(dice.randrange(3)), keys=keys, block_tokens=BLOCK,
                    limit_bytes=PIN_QUOTA_BYTES,
                )  # fmt: skip
                outcomes["pinned"] += done.obstacle is None
            if dice.random() < 0.2:
                store.pins.unpin(tenant, str(dice.randrange(3)))
            if dice.random() < 0.2:
                store.delete(chain[dice.randrange(3)].key)
        return outcomes

    with watching(look) as seen, ThreadPoolExecutor(WRITERS) as pool:
        outcomes = sum(pool.map(write, range(WRITERS)), Counter[str]())
    assert outcomes["stored"] > 8 * steps
    assert outcomes["pinned"] > steps // 8
    assert seen["looks"] > 10
    assert max(most["all"], most["charged"]) <= CAPACITY_BYTES
    assert max(most["a"], most["kept_by_a"]) <= QUOTA_BYTES
    assert most["pinned_by_a"] <= PIN_QUOTA_BYTES
    assert most["pinned"] <= CAPACITY_BYTES // 4
    assert min(most["all"], most["charged"]) > CAPACITY_BYTES // 2, "it was full, so that this says something"
    assert store.check_integrity() == []
    store.close()


def test_what_is_displaced_counts_until_the_disk_has_let_it_go() -> None:
    """A record of ten pages is to go for one of a page; nobody has the other nine before it is known that it went."""
    disk = FaultyStore(MemoryStore())
    store = PrefixStore(disk, capacity_bytes=10 * PAGE)
    large, small, medium = (
        make_record(key=bytes([index]) * 32, payload=bytes(pages * PAGE - 144))
        for index, pages in ((1, 10), (2, 1), (3, 9))
    )
    store.put([large]).result(SECONDS)
    disk.pause()
    disk.fail_writes(StoreUnreadable("the disk"))
    first, second = store.put([small]), store.put([medium])
    assert store.charged_bytes == 10 * PAGE
    assert not second.done()
    disk.resume()
    with pytest.raises(StoreUnreadable):
        first.result(SECONDS)
    assert [str(each.outcome) for each in second.result(SECONDS)] == ["stored"]
    assert store.exists([large.key, small.key, medium.key]) == [False, False, True]
    assert store.charged_bytes == 9 * PAGE
    assert store.check_integrity() == []
    store.close()
