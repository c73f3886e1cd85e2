"""One response's turns on a socket: how long a worker stays with a reader, and where the next turn goes on."""

import contextlib
import itertools
import os
import socket
from types import SimpleNamespace

import pytest

from kvcairn_service import pump
from kvcairn_service.cursor import Cursor, Replaced

RECORD = bytes(range(256)) * (4 << 10)
SMALL = bytes(range(256)) * 16


@pytest.fixture
def ends():
    """A worker's end, and a reader's that takes what it wants when it wants."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        ours.settimeout(0)
        theirs.settimeout(0)
        yield ours, theirs


def pumping(ends, records, *, pieces=None):
    at = Cursor([len(record) for record in records])
    found = pieces or (lambda start, stop: contextlib.nullcontext(records[start:stop]))
    return contextlib.closing(pump.Pump(ends[0].fileno(), at, found)), at


def everything(sock):
    got = bytearray()
    with contextlib.suppress(BlockingIOError):
        while part := sock.recv(1 << 20):
            got += part
    return bytes(got)


def ticking(monkeypatch, step_seconds):
    """A clock that moves by so much whenever somebody looks."""
    clock = itertools.count()
    monkeypatch.setattr(pump, "time", SimpleNamespace(monotonic=lambda: next(clock) * step_seconds))


@pytest.mark.parametrize("records", [[RECORD] * 2, [SMALL] * 400, [RECORD, *[SMALL] * 300, RECORD]],
                         ids=["large", "small", "mixed"])  # fmt: skip
@pytest.mark.parametrize("is_quick", [True, False])
def test_turns_that_end_anywhere_in_a_record_go_on_there(ends, records, is_quick):
    pumped, at = pumping(ends, records)
    got, sent_bytes = b"", 0
    with pumped as turns:
        while not at.is_at_end:
            turn = turns.turn(is_quick=is_quick, may_wait=is_quick)
            assert turn.sent_bytes <= 1 << 20, "the reader takes nothing during a turn, and the kernel little"
            assert turn.is_waiting or at.is_at_end
            sent_bytes += turn.sent_bytes
            got += everything(ends[1])
    assert got == b"".join(records)
    assert sent_bytes == len(got)


def test_a_reader_that_always_makes_a_little_room_has_a_worker_for_one_turn_at_most(ends, monkeypatch):
    ticking(monkeypatch, pump.TURN_SECONDS / 8)
    pumped, at = pumping(ends, [RECORD])
    with pumped as turns:
        turns._room = SimpleNamespace(poll=lambda _: everything(ends[1]))
        turn = turns.turn(is_quick=True, may_wait=True)
    assert 0 < turn.sent_bytes < len(RECORD)
    assert (at.records, turn.is_waiting) == (0, False)


def test_a_slow_reader_is_not_waited_for_by_a_worker(ends):
    """Nor is more looked up for it than it may take: what a slow reader does not take is looked up again."""
    asked = []

    def pieces(start, stop):
        asked.append((start, stop))
        return contextlib.nullcontext([SMALL] * (stop - start))

    pumped, _ = pumping(ends, [SMALL] * 4000, pieces=pieces)
    with pumped as turns:
        turns._room = SimpleNamespace(poll=lambda _: pytest.fail("a worker waits"))
        assert turns.turn(is_quick=False, may_wait=False).is_waiting
        assert asked == [(0, pump.SLOW_READ_BYTES // len(SMALL))]


def test_a_peer_that_is_gone_ends_the_response(ends):
    pumped, _ = pumping(ends, [RECORD])
    with pumped as turns:
        ends[1].close()
        with pytest.raises(pump.Unwritable):
            turns.turn(is_quick=True, may_wait=True)


def test_a_record_that_is_another_one_by_the_next_turn_ends_the_response(ends):
    other = b"another header" + RECORD[14:]
    found = iter([RECORD, other])
    pumped, _ = pumping(ends, [RECORD], pieces=lambda *_: contextlib.nullcontext([next(found)]))
    with pumped as turns:
        assert turns.turn(is_quick=True, may_wait=True).is_waiting
        with pytest.raises(Replaced):
            turns.turn(is_quick=True, may_wait=True)


def test_closing_ends_a_turn_in_the_middle_of_a_record_and_then_the_descriptor(ends):
    pumped, at = pumping(ends, [RECORD])
    with pumped as turns:
        descriptor = turns.descriptor
        turns._room = SimpleNamespace(poll=lambda _: turns.close() or everything(ends[1]))
        turns.turn(is_quick=True, may_wait=True)
        assert at.records == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
