"""Shares between tenants: who may take more of what is scarce, and whose turn it is. docs/decisions/overload.md.

Nothing is kept for a tenant that does not ask, but for a quarter: what one tenant holds comes back when it comes back,
so that whoever arrives in a flood must find some of it free.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

RESERVE = 4
"""One part in so many is lent only to tenants that hold less than their share."""


def is_within_share(amount: int, *, tenant: str, held: Mapping[str, int], limit: int) -> bool:
    """Whether a tenant may take so much more of `limit`, of which each tenant holds what `held` says. Pure.

    A share is the limit divided by the tenants that hold some, and one more. Beyond it, a tenant may take what is not
    in reserve; one that holds nothing may take whatever there is.
    """
    total, own = sum(held.values()), held.get(tenant, 0)
    if total + amount > limit:
        return False
    sharing = sum(1 for each in held.values() if each) + 1
    return not own or own + amount <= limit // sharing or total + amount <= limit - limit // RESERVE


class Turns:
    """So many places for short work; one that comes free goes to the waiting tenant that has the fewest of them.

    Among equals, to the one that was served longest ago; within a tenant, first come, first served. spare: places that
    only a tenant without any may take, so that it need not wait until another's work is done. To be used from the event
    loop alone. How many may wait is bounded by who lets them in (admission.py).
    """

    def __init__(self, places: int, *, spare: int = 0) -> None:
        self._free, self._spare = places, spare
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """A place for one tenant's work, inside the with block."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def moment(self, tenant: str) -> None:
        """A place for what the caller does before it waits for anything: it is given back by the loop's next round."""
        await self._take(tenant)
        asyncio.get_running_loop().call_soon(self._give_back, tenant)

    async def _take(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(tenant)
            else:
                self._withdraw(tenant, turn)
            raise

    def _withdraw(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(tenant, deque())
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant, None)

    def _give_back(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._put_last(tenant)
        self._hand_out()

    def _hand_out(self) -> None:
        while (tenant := self._next()) is not None:
            turn = self._waiting[tenant].popleft()
            self._put_last(tenant)
            if not turn.done():
                self._free -= 1
                self._held[tenant] += 1
                turn.set_result(None)

    def _put_last(self, tenant: str) -> None:
        """Among those that wait, if it does; others come first where they have as few places."""
        turns = self._waiting.pop(tenant, None)
        if turns:
            self._waiting[tenant] = turns

    def _next(self) -> str | None:
        """The waiting tenant with the fewest places, if it may have another; who was served last comes last there."""
        tenant = min(self._waiting, key=self._held.__getitem__, default=None)
        if tenant is None or not self._free:
            return None
        return tenant if self._free > self._spare or not self._held[tenant] else None
