"""Decoding beside the network: compressed payloads wait in a few buffers for threads that verify and decode them.

Decompressing takes several times as long as receiving, and lets go of the interpreter's lock meanwhile.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

THREADS = 2
"""More than a restore's share of a host's cores would be taken from the engine that waits for it."""

BUFFERS = THREADS + 2
"""One for each thread, one that waits for them, one that is being filled: the most that is held of compressed bytes."""

T = TypeVar("T")


class Decoder:
    """Work on borrowed buffers, by threads that exist from the first piece of work until `finish`. Not thread-safe."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(bytearray())

    def borrow(self, size_bytes: int) -> memoryview:
        """A buffer to fill and to hand to `start`; waits until one is free, which takes one payload's decoding."""
        buffer = self._free.get()
        if len(buffer) < size_bytes:
            buffer = bytearray(size_bytes)
        return memoryview(buffer)[:size_bytes]

    def start(self, work: Callable[[], T], payload: memoryview) -> Future[T]:
        """Have `work` done, which may read the borrowed `payload` until it returns."""
        return self._pool().submit(self._work_and_return, work, payload)

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done, which needs no buffer of this."""
        return self._pool().submit(work)

    def finish(self) -> None:
        """Wait for all that was started, and end the threads; more may be started afterwards."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kvcairn-decode")
        return self._threads

    def _work_and_return(self, work: Callable[[], T], payload: memoryview) -> T:
        buffer = payload.obj
        assert isinstance(buffer, bytearray)  # noqa: S101 - it came from `borrow`
        try:
            return work()
        finally:
            self._free.put(buffer)
