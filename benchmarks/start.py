"""A service's start: from its process to the first 200 of /readyz, with few records and with 100,000.

What lies between the two is the index that is read at start (docs/decisions/index-in-memory.md); the rest is Python
reading its modules. The files are in the page cache: what a cold disk adds is the reading of the entries' table.
"""

import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.many_records import CAPACITY, fill
from benchmarks.measure import Figure, Timing
from examples.service import running_service

BLOCKS, FEW, MANY = 8, 1_000, 100_000
AT_MOST_SECONDS = 5.0


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    """Both directories are started in turn; each process is new, so that nothing of it is warm but the files."""
    few, many = (8, 64) if tiny else (FEW, MANY)
    with tempfile.TemporaryDirectory(prefix="kvcairn-start-") as directory:
        places = {others: Path(directory, str(others)) for others in (few, many)}
        for others, data in places.items():
            fill(data, blocks=BLOCKS, others=others - BLOCKS)
        seconds: dict[int, list[float]] = {others: [] for others in places}
        for _ in range(rounds + 1):
            for others, data in places.items():
                seconds[others].append(_start(data))
    timings = {others: Timing(tuple(found[1:])) for others, found in seconds.items()}
    limit = f"{few:,} records: {timings[few].median:.2f} s ({timings[few].spread} s)"
    detail = f"process to /readyz, {timings[many].spread} s"
    work = f"start of the service on {many:,} records"
    return [Figure(work, timings[many].median, "s", detail, limit=limit, at_most=AT_MOST_SECONDS)]


def _start(data: Path) -> float:
    """Seconds from the start of a process to its first answer that it is ready."""
    start = time.perf_counter()
    with running_service(*CAPACITY, data=data) as service:
        assert httpx.get(f"{service.url}/readyz", timeout=60).status_code == 200
        return time.perf_counter() - start
