"""FailOpen: what a dead, slow or full service costs, and when the service is asked again."""

import logging

import pytest

import client_samples as samples
from kvcairn_client.breaker import LIMIT_SECONDS
from kvcairn_client.client import Client
from kvcairn_client.errors import BudgetExceeded, ServiceBusy, ServiceUnreachable, Unauthorized
from kvcairn_client.failopen import FailOpen
from kvcairn_client.faults import cut, instead, problem, silent
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind

LAYOUT = samples.layout()
RECORDS = samples.prompt(LAYOUT, 4)
LOOKUP, FETCH, STORE = "/v1/prefixes:lookup", "/v1/records:fetch", "/v1/records:store"


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def guarded(client: Client, time: Time) -> FailOpen:
    return FailOpen(client, clock=time)


def hit_tokens(guarded: FailOpen) -> int:
    return guarded.lookup(LAYOUT, samples.keys(4)).hit_tokens


def test_without_a_fault_it_is_the_client(guarded: FailOpen) -> None:
    assert guarded.store(LAYOUT, RECORDS).stored == 4
    assert hit_tokens(guarded) == 32
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    assert guarded.fetch(LAYOUT, wishes).loaded == [True] * 4
    assert bytes(buffers[3]) == RECORDS[3].payload
    assert (guarded.faults, guarded.last_fault) == (0, None)


def test_a_dead_service_is_met_once_then_left_alone_then_found_again(
    service: FakeService, guarded: FailOpen, time: Time
) -> None:
    guarded.store(LAYOUT, RECORDS)
    service.close()
    assert [hit_tokens(guarded) for _ in range(50)] == [0] * 50
    assert guarded.store(LAYOUT, RECORDS).stored == 0
    assert guarded.faults == 1, "all but the first call did without the network, stores as well"
    assert isinstance(guarded.last_fault, ServiceUnreachable)
    with FakeService(port=service.port, shelf=service.shelf) as again:
        assert hit_tokens(guarded) == 0, "the pause is not over"
        assert again.seen == []
        time.now += LIMIT_SECONDS
        assert hit_tokens(guarded) == 32
        assert guarded.store(LAYOUT, RECORDS).present == 4
        assert guarded.is_reading


def test_a_silent_service_costs_one_budget_and_not_one_a_prompt(service: FakeService, guarded: FailOpen) -> None:
    guarded.store(LAYOUT, RECORDS)
    service.faults[LOOKUP] = silent
    asked = len(service.seen)
    assert [hit_tokens(guarded) for _ in range(50)] == [0] * 50
    assert len(service.seen) == asked + 1
    assert isinstance(guarded.last_fault, BudgetExceeded)


def test_a_full_service_is_still_read(service: FakeService, guarded: FailOpen, time: Time) -> None:
    guarded.store(LAYOUT, RECORDS)
    service.faults[STORE] = instead(problem(507, extra="Retry-After: 20\r\n"))
    assert guarded.store(LAYOUT, RECORDS).present == 0
    assert isinstance(guarded.last_fault, ServiceBusy)
    assert hit_tokens(guarded) == 32
    del service.faults[STORE]
    time.now += 19
    assert guarded.store(LAYOUT, RECORDS).present == 0, "not before the time that it asked for"
    time.now += 1
    assert guarded.store(LAYOUT, RECORDS).present == 4


def test_a_transfer_that_ends_early_keeps_its_records_and_counts_as_a_fault(
    service: FakeService, guarded: FailOpen, time: Time
) -> None:
    guarded.store(LAYOUT, RECORDS, codec="raw")
    service.faults[FETCH] = cut(1700)
    result = guarded.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])
    assert 0 < result.loaded.count(True) < 4
    assert guarded.faults == 1
    assert not guarded.is_reading
    del service.faults[FETCH]
    time.now += LIMIT_SECONDS
    assert guarded.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).loaded == [True] * 4


def test_a_wrong_token_is_a_fault_that_opens_nothing(service: FakeService, guarded: FailOpen) -> None:
    service.tokens = {"another"}
    assert (hit_tokens(guarded), hit_tokens(guarded)) == (0, 0)
    assert guarded.faults == 2
    assert isinstance(guarded.last_fault, Unauthorized)


def test_a_record_that_nobody_could_read_is_a_fault_not_an_exception(guarded: FailOpen) -> None:
    spoiled = RECORDS[1]._replace(payload=b"short")
    assert guarded.store(LAYOUT, [spoiled]).stored == 0
    assert guarded.faults == 1
    assert guarded.store(LAYOUT, RECORDS).stored == 4


def test_the_caller_s_own_mistake_stays_an_exception(guarded: FailOpen) -> None:
    wish = samples.wanted(LAYOUT, RECORDS)[0][0]
    with pytest.raises(ValueError, match="has 512 bytes"):
        guarded.fetch(LAYOUT, [wish._replace(target=memoryview(bytearray(3)))])


def test_an_interrupt_passes_through(client: Client) -> None:
    class Interrupted(Client):
        def stats(self) -> None:  # type: ignore[override]
            raise KeyboardInterrupt

    with Interrupted() as interrupted, pytest.raises(KeyboardInterrupt):
        FailOpen(interrupted).stats()


def test_faults_are_logged_once_in_a_while_and_recovery_once(
    service: FakeService, guarded: FailOpen, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    service.faults[LOOKUP] = instead(problem(503))
    with caplog.at_level(logging.INFO, "kvcairn_client"):
        for _ in range(12):
            hit_tokens(guarded)
            time.now += 5
        del service.faults[LOOKUP]
        time.now += LIMIT_SECONDS
        hit_tokens(guarded)
        hit_tokens(guarded)
    own = [record for record in caplog.records if record.name.startswith("kvcairn_client")]
    assert 1 <= sum(record.levelno == logging.WARNING for record in own) <= 3
    assert [record.getMessage() for record in own].count("the service answers again") == 1


def test_neutral_answers_have_the_shape_of_the_question(service: FakeService, guarded: FailOpen) -> None:
    service.close()
    guarded.stats()
    wishes, _ = samples.wanted(LAYOUT, RECORDS)
    assert guarded.fetch(LAYOUT, wishes).loaded == [False] * 4
    assert guarded.exists(LAYOUT, [wish[:2] for wish in wishes]) == [False] * 4  # type: ignore[misc]
    assert not guarded.lookup(LAYOUT, samples.keys(4)).answered
    assert LAYOUT.payload_bytes(Kind.HISTORY) == 512
