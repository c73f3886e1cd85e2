"""Timing that survives a noisy machine: rounds are interleaved, the first is thrown away, medians are compared."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Work = Callable[[], object]
Clock = Callable[[], float]


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

    def rate(self, size_bytes: int) -> str:
        """The median as a rate, for work that moves so many bytes."""
        return f"{size_bytes / 1e9 / self.median:.2f} GB/s"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report: what was measured, beside what, and what it has to reach.

    value is in `unit`; limit: the limit or the peer that it stands beside, with its own figure from the same run.
    at_least / at_most: the target, None where there is none. detail: what the value is made of.
    """

    work: str
    value: float
    unit: str
    detail: str
    limit: str = "–"
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


def share(work: str, ours: Timing, name: str, other: Timing, *, size_bytes: int, at_least: float | None) -> Figure:
    """How fast `ours` is, counted in the speed of `other`, a limit or a peer called `name`; both move `size_bytes`."""
    detail = f"{size_bytes / 1e6:,.1f} MB in {ours.median:.3f} s ({ours.rate(size_bytes)}, {ours.spread} s)"
    limit = f"{name} {other.rate(size_bytes)} ({other.spread} s)"
    return Figure(work, other.median / ours.median, "×", detail, limit=limit, at_least=at_least)


def interleave(work: Mapping[str, Work], *, rounds: int, clock: Clock = time.perf_counter) -> dict[str, Timing]:
    """Run every kind of work once a round, `rounds` counted rounds after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, run in work.items():
            seconds[name].append(timed(run, clock=clock))
    return {name: Timing(tuple(found[1:])) for name, found in seconds.items()}


def timed(work: Work, *, clock: Clock = time.perf_counter) -> float:
    """The seconds that `work` takes; for what needs untimed preparation between two rounds."""
    start = clock()
    work()
    return clock() - start


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
