"""The whole service against a plain dictionary, through HTTP: every answer follows from docs/wire.md and what was asked
before, with evictions, tenants, kills and restarts among the steps.

`make torture` takes 100 steps an example (`TEST_ARGS='--model-examples 1000'` for more examples).
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from torture.model.home import ADMIN, Home
from torture.model.machine import ServiceMachine
from torture.spawner import spawning

SHORT = {"max_examples": 12, "stateful_step_count": 40, "phases": [Phase.generate]}
"""Not shrunk: that takes minutes, and the steps of a failure are printed as they are. The long form shrinks."""

CHECKS = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True, "database": None}


@pytest.fixture
def home(tmp_path: object) -> Iterator[Home]:
    with spawning(tmp_path, {"KVCAIRN_ADMIN_TOKEN": ADMIN}) as spawner:  # type: ignore[arg-type]
        home = Home(spawner, tmp_path / "data")  # type: ignore[operator]
        yield home
        home.close()


def machine(home: Home, restarts: int) -> type[ServiceMachine]:
    """The machine of one service."""
    return type("Machine", (ServiceMachine,), {"home": home, "restarts": restarts})


def test_every_answer_follows_from_what_was_asked_before(home: Home) -> None:
    run_state_machine_as_test(machine(home, 1), settings=settings(**SHORT, **CHECKS))


@pytest.mark.torture
def test_every_answer_of_thousands_follows_from_what_was_asked_before(
    home: Home, request: pytest.FixtureRequest
) -> None:
    examples = request.config.getoption("--model-examples")
    long = {"max_examples": examples, "stateful_step_count": 100}
    run_state_machine_as_test(machine(home, 3), settings=settings(**long, **CHECKS))
