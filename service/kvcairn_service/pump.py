"""One response's records onto its socket, by worker threads: straight from the LMDB map, as the kernel takes them.

A view into the map must not outlive its read transaction, since its pages may become another record's; and a transport
keeps what it is given long after `write` has returned. So no transport sees a view. A worker gives the kernel what it
takes and waits a moment where a reader is at work; what is left when the moment is over is copied, and is the
transport's. So nobody who stalls keeps a page from being used again for longer than that. Figures:
docs/decisions/data-plane.md.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from kvcairn_protocol.codec import Bytes

TURN_SECONDS = 0.05
"""A worker is one response's for about so long, and no read transaction waits for a reader for twice as long."""

WAIT_SECONDS = 0.01
"""How long a worker waits for a reader that has not made room; a link of 1 Gb/s moves a megabyte meanwhile."""

READ_BYTES = 8 << 20
"""Records are looked up together up to this size; what they are found to be is read from the disk before it is sent."""

JOINED_BYTES = 256 << 10
"""Small records are copied together up to this size: a system call for each would cost more."""

Pieces = Callable[[int, int], AbstractContextManager[Sequence[Bytes]]]


class Turn(NamedTuple):
    """What a turn has done: `records` are sent whole. rest: a copy of the last bytes of the next `begun` ones."""

    records: int
    begun: int = 0
    rest: bytes = b""


class Pump:
    """Sends one response's records, in turns of whatever worker is free. To be used by one turn at a time.

    It has a descriptor of its own: one that the transport has closed can be another connection's a moment later.
    """

    def __init__(self, descriptor: int, sizes: Sequence[int], pieces: Pieces) -> None:
        """sizes: of all records, in bytes. pieces(start, stop): those records, good inside the with block alone."""
        self._sizes, self._pieces = sizes, pieces
        self._lock = threading.Lock()
        self._descriptor = os.dup(descriptor)
        self._is_closed = False
        self._room = select.poll()
        self._room.register(self._descriptor, select.POLLOUT)

    def close(self) -> None:
        """Let go of the socket; a turn that is under way does so when it ends, which is soon. Never waits."""
        self._is_closed = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closed and self._lock.acquire(blocking=False):
            try:
                if self._descriptor >= 0:
                    os.close(self._descriptor)
                    self._descriptor = -1
            finally:
                self._lock.release()

    def turn(self, start: int) -> Turn:
        """Send from record `start` on, until all is sent, the time is over, or the reader does not keep up."""
        try:
            with self._lock:
                return self._send(start, until=time.monotonic() + TURN_SECONDS)
        finally:
            self._close_if_idle()

    def _send(self, start: int, *, until: float) -> Turn:
        at = start
        while at < len(self._sizes) and not self._is_over(until):
            with self._pieces(at, self._stop(at)) as pieces:
                for count, piece in joined(pieces):
                    # A record that is under way may end, since what is left of it would be copied.
                    rest = self._write(memoryview(piece), until=until + TURN_SECONDS)
                    if rest:
                        return Turn(at - start, count, bytes(rest))
                    at += count
                    if self._is_over(until):
                        break
        return Turn(at - start)

    def _is_over(self, until: float) -> bool:
        return self._is_closed or time.monotonic() >= until

    def _stop(self, start: int) -> int:
        """Where a read from `start` on ends: at least one record, and as many as fit."""
        stop, size_bytes = start, 0
        while stop < len(self._sizes) and (stop == start or size_bytes + self._sizes[stop] <= READ_BYTES):
            size_bytes += self._sizes[stop]
            stop += 1
        return stop

    def _write(self, rest: memoryview, *, until: float) -> memoryview:
        """What the kernel has no room for, even after a moment, or will never take: the transport finds out which.

        until: a reader that makes room again and again, but little each time, is waited for no longer.
        """
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                if self._is_over(until) or not self._room.poll(WAIT_SECONDS * 1e3):
                    break
            except OSError:
                break
        return rest


def joined(pieces: Iterable[Bytes]) -> Iterator[tuple[int, Bytes]]:
    """What to write at once, and how many records it is: a large one as it is, small neighbours as one copy. Pure."""
    small: list[Bytes] = []
    small_bytes = 0
    for piece in pieces:
        is_large = len(piece) >= JOINED_BYTES
        if small and (is_large or small_bytes >= JOINED_BYTES):
            yield len(small), b"".join(small)
            small, small_bytes = [], 0
        if is_large:
            yield 1, piece
        else:
            small.append(piece)
            small_bytes += len(piece)
    if small:
        yield len(small), b"".join(small)
