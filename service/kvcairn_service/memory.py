"""A budget of bytes that all uploads share, so that many clients at once cannot exhaust the service's memory.

Large and small records wait in queues of their own. A reserve is lent to small records alone, so that large ones,
however slowly they arrive, never stop them; and while a large record waits, small ones keep to the reserve, so that
they do not starve it. Within a queue the tenant that has the fewest bytes comes first, and none may have more than its
share (fairness.py) where there are several; a tenant's own uploads are served first come, first served. Who waits for
bytes must hold none that only its own progress would free; ingest.py keeps to that, so that two uploads never wait for
each other.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcairn_service.buffers import BufferPool
from kvcairn_service.fairness import is_within_share

ANYBODY = ""


@dataclass(slots=True)
class _Queue:
    """What each tenant has borrowed for one class of records, and who waits: the bytes, and what to tell."""

    held: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return self.held.total()

    def in_order(self) -> list[str]:
        """The tenants that wait, those that have the least first."""
        return sorted(self.waiting, key=self.held.__getitem__)

    def pop(self, tenant: str) -> "tuple[int, asyncio.Future[None]]":
        turns = self.waiting[tenant]
        first = turns.popleft()
        if not turns:
            del self.waiting[tenant]
        return first

    def add(self, tenant: str, size_bytes: int) -> None:
        self.held[tenant] += size_bytes
        if not self.held[tenant]:
            del self.held[tenant]


class MemoryBudget:
    """Bytes to lend. To be used from the event loop alone.

    An eighth is the reserve; a record is small up to a 32nd of the whole. buffers: the memory itself, for who has
    acquired as many bytes.
    """

    def __init__(self, total_bytes: int, *, is_shared: Callable[[], bool] = lambda: False) -> None:
        """is_shared: whether there are several tenants, so that each has a share."""
        self.total_bytes = total_bytes
        self.reserve_bytes = total_bytes // 8
        self.small_bytes = total_bytes // 32
        self.buffers = BufferPool(total_bytes)
        self._is_shared = is_shared
        self._large, self._small = _Queue(), _Queue()

    @property
    def used_bytes(self) -> int:
        return self._large.used_bytes + self._small.used_bytes

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(turns) for queue in (self._large, self._small) for turns in queue.waiting.values())

    def try_acquire(self, size_bytes: int, *, tenant: str = ANYBODY) -> bool:
        """Take the bytes if they are free, and nobody waits that should have them first."""
        queue = self._queue(size_bytes)
        wanted_bytes = queue.held[tenant] + size_bytes
        if tenant in queue.waiting or any(queue.held[each] < wanted_bytes for each in queue.waiting):
            return False
        if not self._may_lend(size_bytes, queue, tenant):
            return False
        queue.add(tenant, size_bytes)
        return True

    async def acquire(self, size_bytes: int, *, tenant: str = ANYBODY) -> None:
        """Take the bytes, waiting for others to give theirs back; at most seven eighths may be asked for."""
        if self.try_acquire(size_bytes, tenant=tenant):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(size_bytes).waiting.setdefault(tenant, deque()).append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self._withdraw(size_bytes, turn, tenant)
            raise

    def release(self, size_bytes: int, *, tenant: str = ANYBODY) -> None:
        """Give back what one `acquire` of as many bytes took."""
        self._queue(size_bytes).add(tenant, -size_bytes)
        self._lend()

    def _queue(self, size_bytes: int) -> _Queue:
        return self._small if size_bytes <= self.small_bytes else self._large

    def _may_lend(self, size_bytes: int, queue: _Queue, tenant: str) -> bool:
        return self._is_free(size_bytes, queue) and self._is_fair(size_bytes, queue, tenant)

    def _is_free(self, size_bytes: int, queue: _Queue) -> bool:
        if self.used_bytes + size_bytes > self.total_bytes:
            return False
        if queue is self._large:
            return queue.used_bytes + size_bytes <= self._most_bytes(queue)
        return not self._large.waiting or queue.used_bytes + size_bytes <= self.reserve_bytes

    def _is_fair(self, size_bytes: int, queue: _Queue, tenant: str) -> bool:
        limit_bytes = self._most_bytes(queue)
        return not self._is_shared() or is_within_share(size_bytes, tenant=tenant, held=queue.held, limit=limit_bytes)

    def _most_bytes(self, queue: _Queue) -> int:
        return self.total_bytes - self.reserve_bytes if queue is self._large else self.total_bytes

    def _lend(self) -> None:
        for queue in (self._large, self._small):
            while (tenant := self._next(queue)) is not None:
                size_bytes, turn = queue.pop(tenant)
                if not turn.done():
                    queue.add(tenant, size_bytes)
                    turn.set_result(None)

    def _next(self, queue: _Queue) -> str | None:
        """Whose turn it is; nobody's where the first one waits for room, and not for its own share."""
        for tenant in queue.in_order():
            size_bytes = queue.waiting[tenant][0][0]
            if not self._is_free(size_bytes, queue):
                return None
            if self._is_fair(size_bytes, queue, tenant):
                return tenant
        return None

    def _withdraw(self, size_bytes: int, turn: asyncio.Future[None], tenant: str) -> None:
        if turn.done() and not turn.cancelled():
            # Lent in the very moment of the cancellation: nobody else will give it back.
            self.release(size_bytes, tenant=tenant)
            return
        queue = self._queue(size_bytes)
        left = deque(each for each in queue.waiting.pop(tenant, ()) if each[1] is not turn)
        if left:
            queue.waiting[tenant] = left
        self._lend()
