"""A circuit breaker: after a fault, leave the service alone for a while. Pure: time is passed in.

closed ── a call fails ──▶ open ── the pause is over ──▶ one call probes ── it succeeds ──▶ closed
                             ▲                                 └── it fails ──┐
                             └────────── for twice as long ◀──────────────────┘
"""

from dataclasses import dataclass

FIRST_SECONDS = 0.5
LIMIT_SECONDS = 30.0


@dataclass(slots=True)
class Breaker:
    """Not thread-safe: its owner holds a lock. All moments are seconds on one clock."""

    _pause_seconds: float = 0.0
    _open_until: float = 0.0
    _is_probing: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether calls pass freely."""
        return self._pause_seconds == 0

    def allows(self, now: float) -> bool:
        """Whether a call may try. While open, one call after each pause may; a probe that never returns counts once."""
        if self.is_closed:
            return True
        if now < self._open_until:
            return False
        self._is_probing = True
        self._open_until = now + self._pause_seconds
        return True

    def fail(self, now: float, *, at_least_seconds: float = 0.0) -> None:
        """A call failed. at_least_seconds: how long to stay open, whatever the doubling says, up to the limit.

        Calls that were under way together fail together: only the first of them, and then the probe, lengthens the
        pause.
        """
        if self.is_closed or self._is_probing:
            self._pause_seconds = min(max(2 * self._pause_seconds, FIRST_SECONDS, at_least_seconds), LIMIT_SECONDS)
        self._open_until = max(self._open_until, now + self._pause_seconds)
        self._is_probing = False

    def succeed(self) -> None:
        """A call went well."""
        self._pause_seconds = self._open_until = 0.0
        self._is_probing = False
