"""What the service process holds in memory while it is measured."""

import contextlib
import threading
import time
from collections.abc import Iterator

from benchmarks.machine import private_bytes

SAMPLE_SECONDS = 0.01


@contextlib.contextmanager
def peak_private_bytes(pid: int) -> Iterator[list[int]]:
    """Sample the private memory of a process meanwhile; the list holds the highest value seen."""
    peak, stop = [private_bytes(pid)], threading.Event()

    def sample() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], private_bytes(pid))
            time.sleep(SAMPLE_SECONDS)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
