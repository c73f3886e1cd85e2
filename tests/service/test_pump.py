"""One response's turns on a socket: how long a worker stays with a reader, and what is left for the transport."""

import contextlib
import itertools
import socket
from types import SimpleNamespace

import pytest

from kvcairn_service import pump

RECORD = bytes(range(256)) * (4 << 10)


class Reader:
    """Takes what is there whenever the worker waits for room, so that it always makes some in time."""

    def __init__(self, sock):
        self.sock, self.got = sock, bytearray()

    def poll(self, _milliseconds):
        with contextlib.suppress(BlockingIOError):
            self.got += self.sock.recv(1 << 20)
        return True


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        ours.settimeout(0)
        theirs.settimeout(0)
        yield ours, Reader(theirs)


def pumping(ends, count):
    ours, reader = ends
    sizes = [len(RECORD)] * count
    pumped = pump.Pump(ours.fileno(), sizes, lambda start, stop: contextlib.nullcontext([RECORD] * (stop - start)))
    pumped._room = reader
    return contextlib.closing(pumped)


def ticking(monkeypatch, step_seconds):
    """A clock that moves by so much whenever somebody looks."""
    clock = itertools.count()
    monkeypatch.setattr(pump, "time", SimpleNamespace(monotonic=lambda: next(clock) * step_seconds))


def test_a_reader_that_always_makes_a_little_room_has_a_worker_for_two_turns_at_most(ends, monkeypatch):
    ticking(monkeypatch, pump.TURN_SECONDS / 8)
    with pumping(ends, 1) as pumped:
        turn = pumped.turn(0)
        ends[1].poll(0)
    assert (turn.records, turn.begun) == (0, 1)
    assert len(turn.rest) > len(RECORD) / 2
    assert bytes(ends[1].got) + turn.rest == RECORD


def test_a_turn_whose_time_is_over_ends_behind_a_whole_record(ends, monkeypatch):
    """Though more were looked up together: the next turn goes on there, and nothing was copied."""
    ticking(monkeypatch, pump.TURN_SECONDS / 50)
    with pumping(ends, 6) as pumped:
        turns = [pumped.turn(0)]
        while sum(turn.records for turn in turns) < 6:
            turns.append(pumped.turn(sum(turn.records for turn in turns)))
            assert not turns[-1].rest
        ends[1].poll(0)
    assert len(turns) > 1
    assert ends[1].got == RECORD * 6


def test_closing_ends_a_turn_in_the_middle_of_a_record(ends):
    _, reader = ends
    with pumping(ends, 1) as pumped:
        poll = reader.poll
        reader.poll = lambda milliseconds: pumped.close() or poll(milliseconds)
        assert pumped.turn(0).rest
        with pytest.raises(OSError, match="Bad file descriptor"):
            pump.os.fstat(pumped._descriptor)
