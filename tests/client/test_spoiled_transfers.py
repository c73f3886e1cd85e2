"""Transfers that go wrong on their way: what arrived in good order is kept, nothing else ever counts as loaded."""

import threading
from collections.abc import Iterator

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.errors import (
    BadAnswer,
    BudgetExceeded,
    ClientError,
    ServiceUnreachable,
)
from kvcairn_client.faults import (
    Answer,
    Fault,
    Pause,
    Step,
    cut,
    drip,
    endless,
    flip,
    instead,
    rewrite,
    silent,
)
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import RECORDS_TYPE
from kvcairn_protocol.record import HEADER_BYTES

LAYOUT = samples.layout()
RECORDS = samples.prompt(LAYOUT, 4, states=[3])
FETCH = "/v1/records:fetch"
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {RECORDS_TYPE}\r\n"


def check_loaded_is_true(loaded: list[bool], buffers: list[bytearray]) -> None:
    for is_loaded, buffer, record in zip(loaded, buffers, RECORDS, strict=True):
        assert not is_loaded or bytes(buffer) == record.payload


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


def test_no_more_than_a_few_bad_records_are_reported(service: FakeService, client: Client) -> None:
    many = samples.prompt(LAYOUT, 20)
    client.store(LAYOUT, many)
    for name, record in service.shelf.records.items():
        service.shelf.records[name] = record[:-1] + bytes([record[-1] ^ 1])
    assert client.fetch(LAYOUT, samples.wanted(LAYOUT, many)[0]).loaded == [False] * 20
    assert len(service.shelf.reported) == 8
