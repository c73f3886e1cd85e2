"""A budget of bytes that all uploads share, so that many clients at once cannot exhaust the service's memory.

Large and small records wait in queues of their own, each first come, first served. A reserve is lent to small records
alone, so that large ones, however slowly they arrive, never stop them; and while a large record waits, small ones keep
to the reserve, so that they do not starve it. Who waits for bytes must hold none that only its own progress would free;
ingest.py keeps to that, so that two uploads never wait for each other.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from kvcairn_service.buffers import BufferPool


@dataclass(slots=True)
class _Queue:
    """What one class of records has borrowed, and who of them waits."""

    used_bytes: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class MemoryBudget:
    """Bytes to lend. To be used from the event loop alone.

    An eighth is the reserve; a record is small up to a 32nd of the whole. buffers: the memory itself, for who has
    acquired as many bytes.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.reserve_bytes = total_bytes // 8
        self.small_bytes = total_bytes // 32
        self.buffers = BufferPool(total_bytes)
        self._large, self._small = _Queue(), _Queue()

    @property
    def used_bytes(self) -> int:
        return self._large.used_bytes + self._small.used_bytes

    def try_acquire(self, size_bytes: int) -> bool:
        """Take the bytes if they are free and nobody waits in front."""
        queue = self._queue(size_bytes)
        if queue.waiting or not self._may_lend(size_bytes, queue):
            return False
        queue.used_bytes += size_bytes
        return True

    async def acquire(self, size_bytes: int) -> None:
        """Take the bytes, waiting for others to give theirs back; at most seven eighths may be asked for."""
        if self.try_acquire(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(size_bytes).waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self._withdraw(size_bytes, turn)
            raise

    def release(self, size_bytes: int) -> None:
        """Give back what one `acquire` of as many bytes took."""
        self._queue(size_bytes).used_bytes -= size_bytes
        self._lend()

    def _queue(self, size_bytes: int) -> _Queue:
        return self._small if size_bytes <= self.small_bytes else self._large

    def _may_lend(self, size_bytes: int, queue: _Queue) -> bool:
        if self.used_bytes + size_bytes > self.total_bytes:
            return False
        if queue is self._large:
            return queue.used_bytes + size_bytes <= self.total_bytes - self.reserve_bytes
        return not self._large.waiting or queue.used_bytes + size_bytes <= self.reserve_bytes

    def _lend(self) -> None:
        for queue in (self._large, self._small):
            while queue.waiting and self._may_lend(queue.waiting[0][0], queue):
                size_bytes, turn = queue.waiting.popleft()
                if not turn.done():
                    queue.used_bytes += size_bytes
                    turn.set_result(None)

    def _withdraw(self, size_bytes: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            # Lent in the very moment of the cancellation: nobody else will give it back.
            self.release(size_bytes)
            return
        queue = self._queue(size_bytes)
        queue.waiting = deque(each for each in queue.waiting if each[1] is not turn)
        self._lend()
