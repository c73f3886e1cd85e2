"""Every fault of a service costs a bounded time, raises a ClientError or gives a shorter hit, never a wrong byte."""

import time
from collections.abc import Callable, Iterator

import pytest

import client_samples as samples
from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_client.errors import (
    BadAnswer,
    BudgetExceeded,
    ClientError,
    Refused,
    ServiceBusy,
    ServiceFailed,
    ServiceUnreachable,
)
from kvcairn_client.failopen import FailOpen
from kvcairn_client.faults import (
    Answer,
    Fault,
    Step,
    answer,
    cut,
    drip,
    endless,
    honest,
    instead,
    late,
    problem,
    silent,
)
from kvcairn_client.records import Ref
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import RECORDS_TYPE

LAYOUT = samples.layout()
RECORDS = samples.prompt(LAYOUT, 4, states=[3])
FETCH, LOOKUP, STORE = "/v1/records:fetch", "/v1/prefixes:lookup", "/v1/records:store"
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {RECORDS_TYPE}\r\n"

BOUND_SECONDS = 10.0
"""Far above every budget, for a loaded machine; far below the hour for which the faults last."""

NEVER_AN_ANSWER: dict[str, tuple[Fault, type[ClientError] | tuple[type[ClientError], ...]]] = {
    "silence": (silent, BudgetExceeded),
    "too late": (late(30), BudgetExceeded),
    "a byte now and then": (drip(piece_bytes=1, pause_seconds=0.05), BudgetExceeded),
    "hung up at once": (cut(0), ServiceUnreachable),
    "hung up in the status line": (cut(7), (BadAnswer, ServiceUnreachable)),
    "not HTTP": (
        instead(answer(200, "text/html", b"")._replace(head=b"SSH-2.0-OpenSSH_9.6\r\n")),
        (BadAnswer, BudgetExceeded),
    ),
    "binary noise": (instead(Answer(bytes(range(256)) * 4, b"")), BadAnswer),
    "an endless status line": (endless(b"HTTP/1.1 200 ", b"a" * 4096), BadAnswer),
    "endless header lines": (endless(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n"), BadAnswer),
    "another program's page": (instead(answer(200, "text/html", b"<html>hello</html>")), BadAnswer),
    "a redirect": (instead(answer(302, "text/html", b"", extra="Location: http://127.0.0.1:1/\r\n")), BadAnswer),
    "500": (instead(problem(500)), ServiceFailed),
    "502 without a word": (instead(answer(502, "text/plain", b"")), ServiceFailed),
    "503": (instead(problem(503, extra="Retry-After: 7\r\n")), ServiceBusy),
    "400": (instead(problem(400)), Refused),
    "an endless refusal": (endless(b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(65536)), ClientError),
    "endless interim answers": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), ClientError),
}


def timed(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def fetch(client: Client) -> None:
    client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])


def lookup(client: Client) -> None:
    client.lookup(LAYOUT, samples.keys(4))


def store(client: Client) -> None:
    client.store(LAYOUT, RECORDS)


@pytest.mark.parametrize("name", NEVER_AN_ANSWER)
@pytest.mark.parametrize(("path", "verb"), [(FETCH, fetch), (LOOKUP, lookup), (STORE, store)])
def test_what_is_no_answer_is_a_client_error_in_bounded_time(
    service: FakeService, client: Client, path: str, verb: Callable[[Client], None], name: str
) -> None:
    client.store(LAYOUT, RECORDS)
    service.faults[path], expected = NEVER_AN_ANSWER[name]

    def call() -> None:
        with pytest.raises(expected):
            verb(client)

    assert timed(call) < BOUND_SECONDS


@pytest.mark.parametrize("name", NEVER_AN_ANSWER)
def test_no_fault_gets_through_fail_open(service: FakeService, client: Client, name: str) -> None:
    client.store(LAYOUT, RECORDS)
    fault, _ = NEVER_AN_ANSWER[name]
    for path in (FETCH, LOOKUP, STORE, "/v1/records:exists", "/v1/prefixes:touch", "/v1/records:report", "/v1/stats"):
        service.faults[path] = fault
    for verb in (_open_lookup, _open_fetch, _open_store, _open_exists, _open_touch, _open_report, _open_stats):
        guarded = FailOpen(client)  # its breakers closed: every verb meets the fault
        assert timed(lambda verb=verb, guarded=guarded: verb(guarded)) < BOUND_SECONDS
        assert guarded.faults == 1
        assert guarded.last_fault is not None


def _open_lookup(guarded: FailOpen) -> None:
    found = guarded.lookup(LAYOUT, samples.keys(4))
    assert (found.hit_tokens, found.answered) == (0, False)


def _open_fetch(guarded: FailOpen) -> None:
    assert guarded.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).loaded == [False] * 5


def _open_store(guarded: FailOpen) -> None:
    assert guarded.store(LAYOUT, RECORDS).stored == 0


def _open_exists(guarded: FailOpen) -> None:
    assert guarded.exists(LAYOUT, [Ref(Kind.HISTORY, samples.key(0))]) == [False]


def _open_touch(guarded: FailOpen) -> None:
    assert guarded.touch(LAYOUT, block_keys=samples.keys(1)) == 0


def _open_report(guarded: FailOpen) -> None:
    assert guarded.report(LAYOUT, Ref(Kind.HISTORY, samples.key(0))) is False


def _open_stats(guarded: FailOpen) -> None:
    assert guarded.stats() is None


@pytest.mark.parametrize("status", [413, 507])
def test_an_answer_that_comes_before_the_body_is_sent_is_read(
    service: FakeService, client: Client, status: int
) -> None:
    wide = samples.layout(row_bytes=8 << 20)
    client.register(wide)
    service.early[STORE] = problem(status, extra="Retry-After: 3\r\n")
    with pytest.raises(ServiceBusy if status == 507 else Refused) as caught:
        client.store(wide, samples.prompt(wide, 1), codec="raw")
    if isinstance(caught.value, ServiceBusy):
        assert caught.value.retry_after_seconds == 3


def test_a_json_answer_without_an_end_is_given_up(service: FakeService) -> None:
    service.faults[LOOKUP] = endless(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b" " * 65536)
    patient = Budgets(control_seconds=60)
    with Client(service.url, budgets=patient) as client, pytest.raises(BadAnswer, match="at most"):
        lookup(client)


def once(fault: Fault) -> Fault:
    """A fault that is gone after its first answer."""
    left = [fault]

    def first_then_honest(given: Answer) -> Iterator[Step]:
        return (left.pop() if left else honest)(given)

    return first_then_honest


@pytest.mark.parametrize(("path", "verb"), [(FETCH, fetch), (LOOKUP, lookup), (STORE, store)])
def test_a_connection_that_dies_as_it_is_used_again_is_replaced_unseen(
    service: FakeService, client: Client, path: str, verb: Callable[[Client], None]
) -> None:
    client.store(LAYOUT, RECORDS)
    client.lookup(LAYOUT, samples.keys(1))
    service.faults[path] = once(cut(0))
    verb(client)
    assert service.seen.count(f"POST {path}") >= 2


def test_a_new_connection_that_dies_is_not_tried_again(service: FakeService) -> None:
    """Else a service that hangs up on everybody is asked twice as often."""
    service.faults[FETCH] = cut(0)
    with Client(service.url, budgets=samples.QUICK) as client, pytest.raises(ServiceUnreachable):
        fetch(client)
    assert service.seen.count(f"POST {FETCH}") == 1
