"""A budget of bytes that all uploads share, so that many clients at once cannot exhaust the service's memory.

First come, first served: a large record is not starved by small ones behind it. Who waits for bytes must hold none
that only its own progress would free; ingest.py keeps to that, so that two uploads never wait for each other.
"""

import asyncio
from collections import deque


class MemoryBudget:
    """Bytes to lend. To be used from the event loop alone."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, size_bytes: int) -> bool:
        """Take the bytes if they are free and nobody waits in front."""
        if self._waiting or self.used_bytes + size_bytes > self.total_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    async def acquire(self, size_bytes: int) -> None:
        """Take the bytes, waiting for others to give theirs back; at most `total_bytes` may be asked for."""
        if self.try_acquire(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self._withdraw(size_bytes, turn)
            raise

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._lend()

    def _lend(self) -> None:
        while self._waiting and self.used_bytes + self._waiting[0][0] <= self.total_bytes:
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.used_bytes += size_bytes
                turn.set_result(None)

    def _withdraw(self, size_bytes: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            # Lent in the very moment of the cancellation: nobody else will give it back.
            self.release(size_bytes)
            return
        self._waiting = deque(each for each in self._waiting if each[1] is not turn)
        self._lend()
