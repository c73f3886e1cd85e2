"""Options of the long tests: how long, how often, and with which seed."""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture", "the long tests of `make torture`")
    group.addoption("--torture-seed", type=int, help="Repeats a failed run, as far as timing lets it.")
    group.addoption("--kills", type=int, default=200, help="How often the crash test kills the service.")
    group.addoption("--soak-seconds", type=float, default=240.0, help="How long the soak runs; hours are 3600 each.")
    group.addoption("--model-examples", type=int, default=60, help="How many runs of 100 steps the model makes.")
    group.addoption("--wire-seeds", type=int, default=1000, help="Over how many faulty links an engine works.")


@pytest.fixture
def torture_seed(request: pytest.FixtureRequest) -> int:
    """The run's seed; a test that fails says it."""
    given: int | None = request.config.getoption("--torture-seed")
    return random.SystemRandom().randrange(1 << 32) if given is None else given
