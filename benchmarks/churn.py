"""Churn: a store at 90 % of its capacity takes five times the capacity in records of many sizes, and evicts as much.

Every record stands alone, half of them as if compressed; some older ones are used again now and then, so that what goes
does not lie in a row. A sequential write to the same file system after each lap tells what the disk did meanwhile.
"""

import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure import Figure
from kvcairn_protocol.codec import RAW, ZSTD
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import Header
from kvcairn_storage.directory import DATA_NAME
from kvcairn_storage.lmdb import LmdbStore, map_bytes_for
from kvcairn_storage.prefixes import NewRecord, Outcome, PrefixStore
from kvcairn_storage.store import RecordKey

CAPACITY_BYTES, FILL, LAPS, RUNS = 1 << 30, 0.9, 5, 3
RAW_BYTES, COMPRESSED_TO = (1_971_328, 3_640_320), (0.72, 0.95)
GROUP_RECORDS, USED_AGAIN, REMEMBERED_RECORDS = 12, 6, 300
LEAST_RATE, MOST_OF_CAPACITY = 0.9, 1.15


@dataclass(frozen=True, slots=True)
class Run:
    """Rates in GB/s by lap, of the store and of the disk; the data file's size at the end; how many records went."""

    rates: list[float]
    disk: list[float]
    file_bytes: int
    evicted_records: int

    @property
    def kept(self) -> float:
        """The share of the first lap's rate that the median of the later ones keeps."""
        return statistics.median(self.rates[1:]) / self.rates[0]


def run(*, rounds: int, tiny: bool) -> list[Figure]:  # noqa: ARG001 - a run is five laps, and there are three
    capacity_bytes = CAPACITY_BYTES // 16 if tiny else CAPACITY_BYTES
    runs = sorted((_run(capacity_bytes) for _ in range(1 if tiny else RUNS)), key=lambda each: each.kept)
    usual, file_bytes = runs[len(runs) // 2], max(each.file_bytes for each in runs)
    rates = f"{_listed(usual.rates)} GB/s by lap, {usual.evicted_records:,} records evicted; median of {len(runs)} runs"
    size = f"{file_bytes / 1e6:,.0f} MB, the largest of {len(runs)}, for {FILL:.0%} of {capacity_bytes / 1e6:,.0f} MB"
    return [
        Figure("churn: later laps / first lap", usual.kept, "×", rates,
               limit=f"disk, sequential, meanwhile: {_listed(usual.disk)} GB/s", at_least=LEAST_RATE),
        Figure("churn: data file / capacity", file_bytes / capacity_bytes, "×", size, at_most=MOST_OF_CAPACITY),
    ]  # fmt: skip


def _run(capacity_bytes: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="kvcairn-churn-") as directory:
        data, beside = Path(directory, "data"), Path(directory, "sequential")
        store = PrefixStore(LmdbStore(data, map_bytes=map_bytes_for(capacity_bytes)), capacity_bytes=capacity_bytes)
        churn, rates, disk = _Churn(store), [], []
        for _ in range(LAPS):
            rates.append(churn.lap() / 1e9)
            disk.append(_sequential_rate(beside, capacity_bytes // 16) / 1e9)
        evicted_records = sum(usage.evicted_records for usage in store.usage())
        store.close()
        return Run(rates, disk, (data / DATA_NAME).stat().st_size, evicted_records)


class _Churn:
    """Writes lap after lap into a store, as one tenant whose quota keeps it below the capacity."""

    def __init__(self, store: PrefixStore) -> None:
        self._store = store
        self._quota_bytes = int(FILL * store.capacity_bytes)
        self._chance = random.Random(0)
        self._content = memoryview(np.random.default_rng(0).bytes(max(RAW_BYTES)))
        self._written: list[RecordKey] = []

    def lap(self) -> float:
        """Write as many bytes as the capacity has; bytes a second."""
        done_bytes, start = 0, time.perf_counter()
        while done_bytes < self._store.capacity_bytes:
            group = [self._record() for _ in range(GROUP_RECORDS)]
            results = self._store.put(group, quota_bytes=self._quota_bytes).result()
            assert all(result.outcome is Outcome.STORED for result in results), results
            self._use_again([record.key for record in group])
            done_bytes += sum(record.header.record_bytes for record in group)
        return done_bytes / (time.perf_counter() - start)

    def _record(self) -> NewRecord:
        raw_bytes = self._chance.choice(RAW_BYTES)
        share = self._chance.choice((1.0, self._chance.uniform(*COMPRESSED_TO)))
        payload = self._content[: int(share * raw_bytes)]
        header = Header(
            kind=Kind.HISTORY, position=0, raw_bytes=raw_bytes, stored_bytes=len(payload), fingerprint=bytes(32),
            key=self._chance.randbytes(32), parent=bytes(16), codec=RAW if share == 1.0 else ZSTD,
        )  # fmt: skip
        return NewRecord("tenant", header, 0, [header.pack(), payload])

    def _use_again(self, new: list[RecordKey]) -> None:
        self._written = (self._written + new)[-REMEMBERED_RECORDS:]
        self._store.touch(self._chance.sample(self._written, USED_AGAIN))


def _sequential_rate(path: Path, size_bytes: int) -> float:
    """Bytes a second of one plain write, synced."""
    content, start = bytes(size_bytes), time.perf_counter()
    with path.open("wb") as file:
        file.write(content)
        os.fdatasync(file.fileno())
    return size_bytes / (time.perf_counter() - start)


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{rate:.2f}" for rate in rates)
