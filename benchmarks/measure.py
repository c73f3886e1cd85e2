"""Timing that survives a noisy machine: rounds are interleaved, the first is thrown away, medians are compared."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one kind of work over all counted rounds, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> str:
        return f"{min(self.seconds):.3f}..{max(self.seconds):.3f}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report: what was measured, against what, and what it has to reach.

    value is in `unit`; at_least / at_most: the target, None where there is none. detail: what the value is made of.
    """

    work: str
    value: float
    unit: str
    detail: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "–" if self.at_most is None else f"≤ {self.at_most:g}"


def interleave(work: Mapping[str, Work], *, rounds: int) -> dict[str, Timing]:
    """Run every kind of work once a round, `rounds` counted rounds after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(found[1:])) for name, found in seconds.items()}
