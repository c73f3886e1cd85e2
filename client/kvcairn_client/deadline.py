"""The moment at which a call must be over, shared by everything that the call does."""

import time
from collections.abc import Callable

from kvcairn_client.errors import BudgetExceeded

Clock = Callable[[], float]


class Deadline:
    """A point in time, `seconds` from now. budget: the name of the setting that it comes from, for the message.

    Immutable; may be read by any thread.
    """

    def __init__(self, seconds: float, *, budget: str, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self._seconds = seconds
        self._budget = budget

    def remaining_seconds(self) -> float:
        """What is left, more than nothing; BudgetExceeded once nothing is."""
        remaining = self._at - self._clock()
        if remaining <= 0:
            raise self.exceeded()
        return remaining

    def exceeded(self) -> BudgetExceeded:
        """The error to raise when the time is over."""
        return BudgetExceeded(f"not done within {self._budget} ({self._seconds:g} s)")

    def within(self, seconds: float, *, budget: str) -> "Deadline":
        """The earlier of this deadline and one `seconds` from now."""
        other = Deadline(seconds, budget=budget, clock=self._clock)
        return other if other._at < self._at else self
