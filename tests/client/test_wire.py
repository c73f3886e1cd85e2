"""A wire waits no longer than it may, sends without joining, and notices an answer that comes early."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BudgetExceeded, ServiceUnreachable
from kvcairn_client.wire import Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    mine, theirs = socket.socketpair()
    wire = Wire(mine)
    wire.arm(Deadline(5, budget="test_seconds"))
    theirs.settimeout(10)
    with theirs:
        yield wire, theirs
    wire.close()


Ends = tuple[Wire, socket.socket]


def read_all(sock: socket.socket, *, count_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < count_bytes and (piece := sock.recv(1 << 20)):
        found += piece
    return bytes(found)


def test_many_parts_of_any_size_arrive_in_order(ends: Ends) -> None:
    wire, theirs = ends
    parts = [bytes([index % 256]) * (index * 97 % 70_000) for index in range(300)]
    expected = b"".join(parts)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(read_all(theirs, count_bytes=len(expected))))
    reader.start()
    assert wire.send(parts)
    reader.join(10)
    assert received == [expected]


def test_a_part_is_made_only_when_its_turn_comes(ends: Ends) -> None:
    wire, theirs = ends
    made: list[int] = []

    def parts() -> Iterator[bytes]:
        for index in range(64):
            made.append(index)
            yield bytes(1 << 20)

    timer = threading.Timer(0.1, theirs.sendall, [b"enough"])
    timer.start()
    assert not wire.send(parts())
    assert 0 < len(made) < 16
    timer.join()


def test_an_early_answer_stops_the_sending_and_is_read_next(ends: Ends) -> None:
    wire, theirs = ends
    theirs.sendall(b"no, thank you")
    assert not wire.send([bytes(64 << 20)])
    with wire.makefile() as reading:
        assert reading.read(13) == b"no, thank you"


def test_an_answer_that_comes_while_the_peer_takes_nothing_is_noticed(ends: Ends) -> None:
    wire, theirs = ends
    timer = threading.Timer(0.1, theirs.sendall, [b"full"])
    timer.start()
    assert not wire.send([bytes(64 << 20)])
    timer.join()
    target = bytearray(4)
    assert (wire.recv_into(target), target) == (4, b"full")


def test_an_early_answer_is_forgotten_with_its_call(ends: Ends) -> None:
    wire, theirs = ends
    theirs.sendall(b"old")
    assert not wire.send([bytes(1 << 20)])
    wire.arm(Deadline(5, budget="test_seconds"))
    theirs.sendall(b"new")
    target = bytearray(3)
    wire.recv_into(target)
    assert target == b"new"


def test_a_peer_that_hangs_up_is_unreachable(ends: Ends) -> None:
    wire, theirs = ends
    theirs.close()
    with pytest.raises(ServiceUnreachable):
        wire.send([bytes(1 << 20)])


def test_bytes_that_trickle_do_not_outlast_the_deadline(ends: Ends) -> None:
    wire, theirs = ends
    wire.arm(Deadline(0.3, budget="test_seconds"), stall_seconds=0.2)
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(0.05):
            theirs.send(b".")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with wire.makefile() as reading, pytest.raises(BudgetExceeded, match="test_seconds"):
            reading.read(10_000)
    finally:
        done.set()
        thread.join()


def test_silence_ends_a_call_before_its_deadline(ends: Ends) -> None:
    wire, _ = ends
    wire.arm(Deadline(60, budget="test_seconds"), stall_seconds=0.05)
    started = time.monotonic()
    with pytest.raises(BudgetExceeded, match="stall_seconds"):
        wire.recv_into(bytearray(1))
    assert time.monotonic() - started < 30


def test_a_deadline_ends_a_silence_before_it_is_a_stall(ends: Ends) -> None:
    wire, _ = ends
    wire.arm(Deadline(0.05, budget="test_seconds"), stall_seconds=60)
    started = time.monotonic()
    with pytest.raises(BudgetExceeded, match="test_seconds"):
        wire.recv_into(bytearray(1))
    assert time.monotonic() - started < 30


def test_a_flood_ends_with_the_deadline_although_nothing_waits() -> None:
    """The clock jumps: not a single wait happens between the first byte and the deadline."""
    mine, theirs = socket.socketpair()
    now = [0.0]
    wire = Wire(mine)
    wire.arm(Deadline(1, budget="test_seconds", clock=lambda: now[0]))
    with theirs:
        theirs.sendall(bytes(1000))
        wire.recv_into(bytearray(10))
        now[0] = 2.0
        with pytest.raises(BudgetExceeded):
            wire.recv_into(bytearray(10))
    wire.close()


def test_a_wire_closed_here_is_unreachable_not_a_crash(ends: Ends) -> None:
    wire, _ = ends
    wire.close()
    wire.close()
    with pytest.raises(ServiceUnreachable):
        wire.recv_into(bytearray(1))
    with pytest.raises(ServiceUnreachable):
        wire.is_readable()


def test_an_idle_wire_is_readable_once_the_peer_has_gone(ends: Ends) -> None:
    wire, theirs = ends
    assert not wire.is_readable()
    theirs.close()
    assert wire.is_readable()
