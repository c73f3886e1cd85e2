"""Every fault of a service costs a bounded time, raises a ClientError or gives a shorter hit, never a wrong byte."""

import threading
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
    Pause,
    Step,
    answer,
    cut,
    drip,
    endless,
    flip,
    honest,
    instead,
    late,
    problem,
    rewrite,
    silent,
)
from kvcairn_client.records import Ref
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import RECORDS_TYPE
from kvcairn_protocol.record import HEADER_BYTES

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


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (rewrite(lambda body: body[:600]), BudgetExceeded),
        (drip(piece_bytes=60, pause_seconds=0.1), BudgetExceeded),
        (lambda given: silent(given, after_bytes=900), BudgetExceeded),
        (cut(1100), ServiceUnreachable),
        (rewrite(lambda body: body[:500] + b"?" * len(body)), BadAnswer),
    ],
    ids=["fewer bytes than promised", "dripping", "silence in the middle", "hung up in the middle", "another stream"],
)
def test_what_arrived_before_the_fault_is_kept(
    service: FakeService, client: Client, fault: Fault, expected: type[ClientError]
) -> None:
    client.store(LAYOUT, RECORDS, codec="zstd")
    service.faults[FETCH] = fault
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert isinstance(result.fault, expected)
    assert result.loaded.index(False) == sum(result.loaded), "nothing after the fault is loaded"
    check_loaded_is_true(result.loaded, buffers)


def test_a_cut_between_records_costs_what_follows_alone(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS, codec="raw")
    two_records = 2 * (HEADER_BYTES + LAYOUT.payload_bytes(Kind.HISTORY))
    service.faults[FETCH] = rewrite(lambda body: body[:two_records])
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert result.loaded == [True, True, False, False, False]
    assert result.bytes_received == two_records
    check_loaded_is_true(result.loaded, buffers)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_flipped_payload_bit_is_a_miss_and_is_reported_and_its_neighbours_are_loaded(
    service: FakeService, client: Client, codec: str
) -> None:
    client.store(LAYOUT, RECORDS, codec=codec)
    service.faults[FETCH] = flip(HEADER_BYTES + 20)
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert result.loaded == [False, True, True, True, True]
    assert result.fault is None
    assert service.shelf.reported == [(LAYOUT.fingerprint, Kind.HISTORY, samples.key(0))]
    check_loaded_is_true(result.loaded, buffers)


def test_a_record_under_another_key_is_a_miss(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)
    shelf = service.shelf.records
    first, second = ((LAYOUT.fingerprint, Kind.HISTORY, samples.key(i)) for i in (0, 1))
    shelf[first], shelf[second] = shelf[second], shelf[first]
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert result.loaded == [False, False, True, True, True]
    check_loaded_is_true(result.loaded, buffers)
    assert len(service.shelf.reported) == 2


def test_a_true_record_at_another_position_is_a_miss(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)
    wishes, _ = samples.wanted(LAYOUT, RECORDS)
    wishes[1] = wishes[1]._replace(position=24)
    assert client.fetch(LAYOUT, wishes).loaded == [True, False, True, True, True]


def test_a_record_of_another_layout_is_a_miss(service: FakeService, client: Client) -> None:
    other = samples.layout("org/model@2")
    client.store(LAYOUT, RECORDS[:1])
    client.store(other, samples.prompt(other, 1))
    name = (LAYOUT.fingerprint, Kind.HISTORY, samples.key(0))
    service.shelf.records[name] = service.shelf.records[(other.fingerprint, Kind.HISTORY, samples.key(0))]
    assert client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS[:1])[0]).loaded == [False]


def test_a_length_beyond_the_record_is_not_read(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)
    huge = (1 << 62).to_bytes(8, "little")
    service.faults[FETCH] = rewrite(lambda body: body[:16] + huge + huge + body[32:])
    result = client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])
    assert isinstance(result.fault, BadAnswer)
    assert result.bytes_received == HEADER_BYTES
    assert result.loaded == [False] * 5


def test_an_endless_answer_is_read_no_further_than_was_asked(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)
    whole = b"".join(service.shelf.records[(LAYOUT.fingerprint, r.kind, r.key)] for r in RECORDS)
    service.faults[FETCH] = endless(f"{HEAD}\r\n".encode() + whole, bytes(65536))
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert result.loaded == [True] * 5
    assert result.bytes_received == len(whole)
    check_loaded_is_true(result.loaded, buffers)
    del service.faults[FETCH]
    assert client.fetch(LAYOUT, wishes).loaded == [True] * 5, "that connection was not used again"


def test_bytes_that_follow_an_answer_never_reach_the_next_one(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)
    service.faults[FETCH] = rewrite(lambda body: body + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    for _ in range(3):
        wishes, buffers = samples.wanted(LAYOUT, RECORDS)
        result = client.fetch(LAYOUT, wishes)
        assert result.loaded == [True] * 5
        check_loaded_is_true(result.loaded, buffers)


def test_a_connection_whose_answer_has_not_ended_is_not_used_again(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)

    def promises_more(given: Answer) -> Iterator[Step]:
        yield f"{HEAD}Content-Length: {len(given.body) + 1}\r\n\r\n".encode() + given.body
        yield Pause(30)

    service.faults[FETCH] = promises_more
    for _ in range(2):
        assert client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).loaded == [True] * 5
    del service.faults[FETCH]
    assert client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).loaded == [True] * 5


def test_bytes_that_come_to_an_idle_connection_are_not_taken_for_an_answer(
    service: FakeService, client: Client
) -> None:
    client.store(LAYOUT, RECORDS)
    sent = threading.Event()

    def speaks_unasked(given: Answer) -> Iterator[Step]:
        yield given.head + given.body
        yield b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\n\r\n"
        sent.set()

    service.faults[FETCH] = speaks_unasked
    for _ in range(2):
        sent.clear()
        assert client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).loaded == [True] * 5
        assert sent.wait(10)


def test_a_chunked_answer_is_read_as_well(service: FakeService, client: Client) -> None:
    client.store(LAYOUT, RECORDS)
    whole = b"".join(service.shelf.records[(LAYOUT.fingerprint, r.kind, r.key)] for r in RECORDS)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (whole[:77], whole[77:700], whole[700:]))
    head = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
    service.faults[FETCH] = instead(Answer(head, chunks + b"0\r\n\r\n"))
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    assert client.fetch(LAYOUT, wishes).loaded == [True] * 5
    check_loaded_is_true([True] * 5, buffers)


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


def check_loaded_is_true(loaded: list[bool], buffers: list[bytearray]) -> None:
    for is_loaded, buffer, record in zip(loaded, buffers, RECORDS, strict=True):
        assert not is_loaded or bytes(buffer) == record.payload


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


def test_no_more_than_a_few_bad_records_are_reported(service: FakeService, client: Client) -> None:
    many = samples.prompt(LAYOUT, 20)
    client.store(LAYOUT, many)
    for name, record in service.shelf.records.items():
        service.shelf.records[name] = record[:-1] + bytes([record[-1] ^ 1])
    assert client.fetch(LAYOUT, samples.wanted(LAYOUT, many)[0]).loaded == [False] * 20
    assert len(service.shelf.reported) == 8
