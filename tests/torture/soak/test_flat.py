"""The judge of the soak, judged: leaks are found, and what scatters, steps or settles is none."""

import random

import pytest

from torture.soak.flat import growth

WINDOWS = 80


def noisy(rng: random.Random, at: int) -> float:
    return 100.0 + rng.gauss(0, 2)


def test_a_leak_smaller_than_its_noise_in_every_window_is_found() -> None:
    rng = random.Random(1)
    assert growth([noisy(rng, at) + 0.5 * at for at in range(WINDOWS)])


def test_one_descriptor_a_window_is_found() -> None:
    assert growth([float(20 + at) for at in range(WINDOWS)])


@pytest.mark.parametrize("seed", range(20))
def test_what_only_scatters_is_no_leak(seed: int) -> None:
    rng = random.Random(seed)
    assert growth([noisy(rng, at) for at in range(WINDOWS)]) is None


@pytest.mark.parametrize(
    "samples",
    [
        [8.0] * WINDOWS,
        [8.0] * 60 + [9.0] * 20,
        [float(min(at, 9)) for at in range(WINDOWS)],
        [70_000 * (1 - 0.8**at) for at in range(WINDOWS)],
        [float(at % 7) for at in range(WINDOWS)],
        [float(-at) for at in range(WINDOWS)],
    ],
    ids=["constant", "one step", "settles", "comes to rest", "saw", "shrinks"],
)
def test_what_is_bounded_is_no_leak(samples: list[float]) -> None:
    assert growth(samples) is None
