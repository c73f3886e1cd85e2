"""The breaker alone, on a clock of its own."""

import pytest

from kvcairn_client.breaker import FIRST_SECONDS, LIMIT_SECONDS, Breaker


def test_a_closed_breaker_allows_everything() -> None:
    breaker = Breaker()
    assert breaker.is_closed
    assert all(breaker.allows(float(now)) for now in range(5))


def test_after_a_fault_nothing_passes_until_the_pause_is_over_and_then_one_call() -> None:
    breaker = Breaker()
    breaker.fail(100.0)
    assert not breaker.allows(100.0)
    assert not breaker.allows(100.0 + FIRST_SECONDS - 0.01)
    assert breaker.allows(100.0 + FIRST_SECONDS)
    assert not breaker.allows(100.0 + FIRST_SECONDS)


def test_pauses_double_up_to_the_limit() -> None:
    breaker, now, pauses = Breaker(), 0.0, []
    for _ in range(8):
        breaker.fail(now)
        steps = next(step for step in range(1, 1000) if breaker.allows(now + step / 4))
        pauses.append(steps / 4)
        now += steps / 4
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_success_closes_it_and_the_next_fault_starts_small() -> None:
    breaker = Breaker()
    breaker.fail(0.0)
    assert breaker.allows(10.0)
    breaker.fail(10.0)
    assert breaker.allows(20.0)
    breaker.succeed()
    assert breaker.is_closed
    breaker.fail(30.0)
    assert breaker.allows(30.0 + FIRST_SECONDS)


def test_calls_that_fail_together_count_as_one_fault() -> None:
    breaker = Breaker()
    for _ in range(20):
        breaker.fail(0.0)
    assert breaker.allows(FIRST_SECONDS)


def test_a_probe_that_never_returns_holds_the_breaker_for_one_pause() -> None:
    breaker = Breaker()
    breaker.fail(0.0)
    assert breaker.allows(FIRST_SECONDS)
    assert not breaker.allows(FIRST_SECONDS + 0.1)
    assert breaker.allows(2 * FIRST_SECONDS)


@pytest.mark.parametrize(("asked", "expected"), [(7.0, 7.0), (0.1, FIRST_SECONDS), (900.0, LIMIT_SECONDS)])
def test_a_pause_that_was_asked_for_is_kept_within_the_limit(asked: float, expected: float) -> None:
    breaker = Breaker()
    breaker.fail(0.0, at_least_seconds=asked)
    assert not breaker.allows(expected - 0.01)
    assert breaker.allows(expected)
