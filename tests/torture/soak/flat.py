"""Whether a series of samples still grows. Pure: it compares windows with each other, never with a fixed limit."""

import statistics
from collections.abc import Sequence
from itertools import combinations, pairwise
from math import erfc, sqrt

WARM_UP = 0.5
"""Of all windows; meanwhile pools fill, caches warm, threads are made, and Python's heap finds its size."""

LEAST_WINDOWS = 48
LIKELY = 0.001
"""What is called growth happens by chance in one of a thousand series that do not grow."""

NOISES = 3.0
STEADY = 4.0
"""How many times the smallest step the largest may be, for the growth to be one that goes on."""


def growth(samples: Sequence[float]) -> str | None:
    """How the samples grow, as a sentence; None if they do not.

    A leak goes on: after the warm-up each quarter's median is above the one before by a like step, the whole rises by
    more than the windows scatter, and the order of the samples is no accident (Mann and Kendall's test). One step, as
    when a pool gets its last thread, is none; neither is what comes to rest.
    """
    assert len(samples) >= LEAST_WINDOWS, f"{len(samples)} windows are too few to tell"
    kept = list(samples[int(len(samples) * WARM_UP) :])
    size = len(kept) / 4
    medians = [statistics.median(kept[int(part * size) : int((part + 1) * size)]) for part in range(4)]
    steps = [after - before for before, after in pairwise(medians)]
    rise = medians[-1] - medians[0]
    if min(steps) > max(steps) / STEADY and rise > NOISES * _scatter(kept) and _chance(kept) < LIKELY:
        return f"grows: medians of four parts {medians}, scatter {_scatter(kept):g}, chance {_chance(kept):.1g}"
    return None


def _scatter(samples: Sequence[float]) -> float:
    """The median distance of neighbours: what is left of the noise where a trend is taken out."""
    return statistics.median(abs(after - before) for before, after in pairwise(samples))


def _chance(samples: Sequence[float]) -> float:
    """Of so many pairs in rising order, if the order were an accident (one-sided, normal approximation)."""
    count = len(samples)
    score = sum((after > before) - (after < before) for before, after in combinations(samples, 2))
    variance = count * (count - 1) * (2 * count + 5) / 18
    return 0.5 * erfc((score - 1) / sqrt(2 * variance))
