"""One response's records onto its socket, by worker threads: straight from the LMDB map, as the kernel takes them.

A view into the map must not outlive its read transaction, since its pages may become another record's; and a transport
keeps what it is given long after `write` has returned. So no transport sees a view. A worker gives the kernel what it
takes, and waits a moment where a reader is at work. Where that was in vain the turn is over, wherever in a record it
stands, and the next one goes on there: nobody who stalls keeps a page from being used again, nor a byte of memory.
Figures: docs/decisions/data-plane.md.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from kvcairn_protocol.codec import Bytes
from kvcairn_service.cursor import Cursor

TURN_SECONDS = 0.05
"""A worker is one response's for about so long, and no read transaction waits for a reader for longer."""

WAIT_SECONDS = 0.01
"""How long a worker waits for a reader that has not made room; a link of 1 Gb/s moves a megabyte meanwhile."""

READ_BYTES, SLOW_READ_BYTES = 8 << 20, 1 << 20
"""Records are looked up together up to this size; what they are found to be is read from the disk before it is sent.
Less for a reader that takes little at a time, since what it does not take is looked up again."""

JOINED_BYTES = 256 << 10
"""Small records are copied together up to this size: a system call for each would cost more."""

Pieces = Callable[[int, int], AbstractContextManager[Sequence[Bytes]]]


class Unwritable(ConnectionError):
    """The kernel takes nothing more for this peer: it is gone."""


class Turn(NamedTuple):
    """What a turn has done. is_waiting: the reader has to make room first."""

    sent_bytes: int
    is_waiting: bool


class Pump:
    """Sends one response's records, in turns of whatever worker is free. To be used by one turn at a time.

    It has a descriptor of its own: one that the transport has closed can be another connection's a moment later.
    """

    def __init__(self, descriptor: int, at: Cursor, pieces: Pieces) -> None:
        """at: where to begin, and then how far it got. pieces(start, stop): those records, good in the with block."""
        self._at, self._pieces = at, pieces
        self._lock = threading.Lock()
        self.descriptor = os.dup(descriptor)
        self._is_closed = False
        self._room = select.poll()
        self._room.register(self.descriptor, select.POLLOUT)

    def close(self) -> None:
        """Let go of the socket; a turn that is under way does so when it ends, which is soon. Never waits."""
        self._is_closed = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closed and self._lock.acquire(blocking=False):
            try:
                if self.descriptor >= 0:
                    os.close(self.descriptor)
                    self.descriptor = -1
            finally:
                self._lock.release()

    def turn(self, *, is_quick: bool, may_wait: bool) -> Turn:
        """Send on, until all is sent, the time is over, or the reader does not keep up; Unwritable where it is gone.

        is_quick: whether the reader has kept up so far, so that much is looked up for it. may_wait: whether a worker
        can be spared to wait for it a moment.
        """
        try:
            with self._lock:
                return self._send(
                    until=time.monotonic() + TURN_SECONDS,
                    wait_seconds=WAIT_SECONDS if may_wait else 0,
                    read_bytes=READ_BYTES if is_quick else SLOW_READ_BYTES,
                )
        finally:
            self._close_if_idle()

    def _send(self, *, until: float, wait_seconds: float, read_bytes: int) -> Turn:
        at, total_bytes, is_waiting = self._at, 0, False
        while not (at.is_at_end or is_waiting or self._is_over(until)):
            with self._pieces(at.records, at.stop(read_bytes=read_bytes)) as pieces:
                sent_bytes, is_waiting = self._write_all(joined(at.unsent(pieces)), until, wait_seconds)
                at.advance(pieces, sent_bytes=sent_bytes)
            total_bytes += sent_bytes
        return Turn(total_bytes, is_waiting)

    def _write_all(self, pieces: Iterable[Bytes], until: float, wait_seconds: float) -> tuple[int, bool]:
        """Returns how many bytes the kernel took, and whether it has no room for the next."""
        sent_bytes = 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                if self._is_over(until) and sent_bytes:
                    return sent_bytes, False
                written = self._write(rest, wait_seconds)
                if not written:
                    return sent_bytes, True
                sent_bytes += written
                rest = rest[written:]
        return sent_bytes, False

    def _write(self, rest: memoryview, wait_seconds: float) -> int:
        """What the kernel takes, 0 where it has no room even after a moment."""
        for last in (False, True):
            try:
                return os.write(self.descriptor, rest)
            except BlockingIOError:
                if last or not (wait_seconds and self._room.poll(wait_seconds * 1e3)):
                    break
            except OSError as error:
                raise Unwritable(f"the client went away before its answer was complete: {error.strerror}") from error
        return 0

    def _is_over(self, until: float) -> bool:
        return self._is_closed or time.monotonic() >= until


def joined(pieces: Iterable[Bytes]) -> Iterator[Bytes]:
    """What to write at once: a large record as it is, small neighbours as one copy. Pure."""
    small: list[Bytes] = []
    small_bytes = 0
    for piece in pieces:
        is_large = len(piece) >= JOINED_BYTES
        if small and (is_large or small_bytes >= JOINED_BYTES):
            yield b"".join(small)
            small, small_bytes = [], 0
        if is_large:
            yield piece
        else:
            small.append(piece)
            small_bytes += len(piece)
    if small:
        yield b"".join(small)
