"""Who makes way when there are more connections than may be open at once.

Strangers first: who has shown no valid token yet, those that came first before the others. So a flood of connections
that never say anything pushes out itself, and not those of tenants. Then connections that wait for their next request,
the longest waiting one of the tenant that has most. A connection on which something is being answered stays: there are
never more of these than requests are admitted.
"""

from collections import Counter
from typing import Protocol


class Guest(Protocol):
    """A connection, as far as its place is concerned; hashed by identity."""

    @property
    def is_answering(self) -> bool:
        """Whether an answer is being made or owed."""
        ...

    @property
    def is_receiving(self) -> bool:
        """Whether a request has begun to come, and not come whole."""
        ...


class Crowd:
    """The open connections: strangers in the order they came, tenants' in the order of their last request.

    made_way: how many were closed to let others in. refused: how many found nobody that could go. To be used from the
    event loop alone.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.made_way = self.refused = 0
        self._strangers: dict[Guest, None] = {}
        self._known: dict[Guest, str] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def join(self, guest: Guest) -> Guest | None:
        """Take in a new one, a stranger; returns who must be closed for it: another, or itself where nobody can go."""
        leaving = self._first_to_go() if len(self) >= self.most else None
        if leaving is not None:
            self.leave(leaving)
            self.made_way += 1
        elif len(self) >= self.most:
            self.refused += 1
            return guest
        self._strangers[guest] = None
        return leaving

    def recognise(self, guest: Guest, tenant: str) -> None:
        """A request of this tenant has come on it. Nothing for one that has left."""
        if guest in self._strangers or guest in self._known:
            self.leave(guest)
            self._known[guest] = tenant

    def leave(self, guest: Guest) -> None:
        """It is closed, or about to be; a second call does nothing."""
        self._strangers.pop(guest, None)
        self._known.pop(guest, None)

    def _first_to_go(self) -> Guest | None:
        stranger = next((guest for guest in self._strangers if not guest.is_answering), None)
        return stranger or self._idle_of_the_largest()

    def _idle_of_the_largest(self) -> Guest | None:
        for tenant, _ in Counter(self._known.values()).most_common():
            for guest, owner in self._known.items():
                if owner == tenant and not (guest.is_answering or guest.is_receiving):
                    return guest
        return None
