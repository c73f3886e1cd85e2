"""Many writers and readers at once: nothing exceeds a limit by a byte, nothing is half there, nothing hangs."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.errors import StoreFull
from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import Entry, Put, RecordKey, RecordStore
from kvcairn_storage.testing import LAYOUT, SECONDS, FaultyStore, make_chain, make_record, make_state

PAGE = 4096
WRITERS = 4


def pages_bytes(data_bytes: int) -> int:
    """A record's charge, from its definition: whole pages for header, payload and 16 bytes more."""
    return (data_bytes + 16 + PAGE - 1) // PAGE * PAGE


class Auditor:
    """A RecordStore that keeps its own book of what lies on the disk after every commit."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._lengths: dict[RecordKey, int] = {}
        self.most_bytes = 0
        self.most_by_tenant: Counter[str] = Counter()

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        written = self._records.write(puts, deletes)
        written.add_done_callback(lambda done: self._book(puts, deletes) if done.exception() is None else None)
        return written

    def _book(self, puts: Sequence[Put], deletes: Sequence[RecordKey]) -> None:
        with self._lock:
            for key in deletes:
                self._lengths.pop(key, None)
            for put in puts:
                self._lengths[put.key] = pages_bytes(sum(len(part) for part in put.data))
            self.most_bytes = max(self.most_bytes, sum(self._lengths.values()))
            for tenant in ("a", "b"):
                used = sum(length for key, length in self._lengths.items() if key.tenant == tenant)
                self.most_by_tenant[tenant] = max(self.most_by_tenant[tenant], used)

    def get(self, key: RecordKey) -> bytes | None:
        return self._records.get(key)

    def views(self, keys: Iterable[RecordKey]) -> AbstractContextManager[list[memoryview | None]]:
        return self._records.views(keys)

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        return self._records.scan()

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        return self._records.note_use(uses)

    def check_integrity(self) -> list[str]:
        return self._records.check_integrity()

    def close(self) -> None:
        self._records.close()


def memory(_: Path) -> RecordStore:
    return MemoryStore()


def disk(path: Path) -> RecordStore:
    return LmdbStore(path, map_bytes=64 << 20)


@pytest.mark.parametrize("open_records", [memory, disk])
def test_parallel_writers_never_exceed_the_capacity_or_a_quota(
    tmp_path: Path, open_records: Callable[[Path], RecordStore]
) -> None:
    capacity_bytes, quota_bytes = 60 * PAGE, 25 * PAGE
    auditor = Auditor(open_records(tmp_path))
    store = PrefixStore(auditor, capacity_bytes=capacity_bytes)
    charged: list[int] = []

    def work(seed: int) -> Counter[str]:
        dice, seen = random.Random(seed), Counter[str]()
        tenant = "ab"[seed % 2]
        for step in range(40):
            chain = make_chain([bytes([seed + 1, step, depth, 0]) * 8 for depth in range(3)], tenant=tenant)
            payload = bytes(dice.randrange(4 * PAGE))
            state = make_state(chain[-1], payload=payload)
            results = store.put([*chain, state], quota_bytes=quota_bytes if tenant == "a" else None).result(SECONDS)
            seen.update(str(result.outcome) for result in results)
            charged.append(store.charged_bytes)
            with store.hold([record.key for record in chain]) as hold:
                for record, entry in zip(chain, hold.entries, strict=True):
                    assert (store.get(record.key) is not None) or entry is None
            store.touch([chain[0].key])
        return seen

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = sum(pool.map(work, range(WRITERS)), Counter[str]())
    assert outcomes["stored"] > 400
    assert set(outcomes) <= {"stored", "full", "quota"}
    assert max(charged) <= capacity_bytes
    assert auditor.most_bytes <= capacity_bytes
    assert auditor.most_by_tenant["a"] <= quota_bytes
    assert auditor.most_bytes > capacity_bytes // 2
    assert store.check_integrity() == []
    assert store.held_records == 0
    store.close()


def test_failing_writes_among_parallel_ones_leave_the_sums_right() -> None:
    faulty = FaultyStore(MemoryStore())
    auditor = Auditor(faulty)
    store = PrefixStore(auditor, capacity_bytes=30 * PAGE)

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for step in range(60):
            if dice.random() < 0.3:
                faulty.fail_writes(StoreFull("no space"))
            kind = dice.choice(list(Kind))
            payload = bytes(dice.randrange(3 * PAGE))
            record = make_record(key=bytes([seed, step]) * 16, tenant="a", kind=kind, payload=payload)
            store.put([record]).result(SECONDS)
            if dice.random() < 0.2:
                store.drop(tenant="a", layout=LAYOUT if dice.random() < 0.5 else None)

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = [pool.submit(work, seed).exception(SECONDS) for seed in range(WRITERS)]
    assert [error for error in outcomes if not isinstance(error, StoreFull | None)] == []
    assert auditor.most_bytes <= 30 * PAGE
    assert store.check_integrity() == []
    store.close()


def test_everybody_who_stores_the_same_prefix_gets_an_answer_and_one_copy_is_kept(tmp_path: Path) -> None:
    store = PrefixStore(disk(tmp_path), capacity_bytes=1 << 20)
    chain = make_chain([bytes([index + 1]) * 32 for index in range(20)])
    start = threading.Barrier(WRITERS)

    def work(_: int) -> Counter[str]:
        start.wait(SECONDS)
        return Counter(str(result.outcome) for result in store.put(chain).result(SECONDS))

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = sum(pool.map(work, range(WRITERS)), Counter[str]())
    assert outcomes == {"stored": 20, "present": 20 * (WRITERS - 1)}
    assert [usage.records for usage in store.usage()] == [20]
    store.close()
