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
        self._whole: Deadline | None = None

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
        """The earlier of this deadline and one `seconds` from now, for a part of this one's work."""
        part = Deadline(seconds, budget=budget, clock=self._clock)
        if self._at <= part._at:
            part._at, part._seconds, part._budget = self._at, self._seconds, self._budget
        part._whole = self
        return part

    def afterwards(self, seconds: float, *, budget: str) -> "Deadline":
        """One `seconds` from now, for what follows this one's work; within the whole of which that was a part."""
        if self._whole is None:
            return Deadline(seconds, budget=budget, clock=self._clock)
        return self._whole.within(seconds, budget=budget)
