"""One connection as bytes: every wait is bounded by a deadline, every error of socket and TLS is a ClientError.

The socket never blocks by itself: it is tried first and waited for where it has nothing, so that a peer that sends a
byte now and then cannot outlast the deadline (a socket's own timeout starts anew with each of them).
"""

import io
import math
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BudgetExceeded, ServiceUnreachable
from kvcairn_client.tls import explained
from kvcairn_protocol.codec import Bytes

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PARTS_A_CALL, _READY_BYTES = 64, 1 << 20
_EARLY_BYTES = 64 << 10


class Wire:
    """A connected stream socket, plain or TLS. Not thread-safe: one call at a time, which arms it first."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._deadline: Deadline | None = None
        self._stall_seconds: float | None = None
        self._early = bytearray()

    def arm(self, deadline: Deadline, *, stall_seconds: float | None = None) -> None:
        """Set the bounds of the next call: its deadline, and the longest silence inside it."""
        self._deadline, self._stall_seconds = deadline, stall_seconds
        self._early.clear()

    def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Agree on TLS, within the armed deadline."""
        try:
            wrapped = context.wrap_socket(self._sock, server_hostname=server_name, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            cause = explained(error) if isinstance(error, OSError) else error
            raise ServiceUnreachable(f"TLS could not be started: {cause}") from error
        self._sock = wrapped
        while (event := self._try(wrapped.do_handshake)) is not None:
            self._wait(event)

    def recv_into(self, target: "WriteableBuffer") -> int:
        """Wait for some bytes and put them into `target`; 0 at the stream's end."""
        if self._early:
            return self._take_early(target)
        while True:
            self._armed().remaining_seconds()  # a flood never waits, and must end all the same
            try:
                return self._sock.recv_into(target)
            except OSError as error:
                self._wait(_wanted_event(error, select.POLLIN))

    def send(self, parts: Iterable[Bytes]) -> bool:
        """Send all parts without joining them; False where the peer answered before everything was sent.

        The rest is then left unsent, and the answer is what `recv_into` reads next. Parts are taken as they are needed:
        making one costs no time while the socket still holds what was sent before.
        """
        rest = (memoryview(part).cast("B") for part in parts if len(part))
        waiting: deque[memoryview] = deque()
        while _refill(waiting, rest):
            self._armed().remaining_seconds()
            if self._answered():
                return False
            try:
                _advance(waiting, self._send_some(waiting))
            except OSError as error:
                if not _is_wait(error) and self._answered():
                    return False
                self._wait(_wanted_event(error, select.POLLOUT) | select.POLLIN)
        return True

    def send_all(self, data: Bytes) -> None:
        """Send `data`, without looking for an answer on the way."""
        rest = memoryview(data).cast("B")
        while rest:
            self._armed().remaining_seconds()
            try:
                rest = rest[self._sock.send(rest) :]
            except OSError as error:
                self._wait(_wanted_event(error, select.POLLOUT))

    def makefile(self, mode: str = "rb") -> io.BufferedReader:
        """The reading side as http.client wants it. Closing it leaves the connection open."""
        if mode != "rb":
            raise ValueError(f"a wire is read in mode 'rb'; asked for {mode!r}")
        return io.BufferedReader(_Reading(self))

    def is_readable(self) -> bool:
        """Whether bytes, or the end, have arrived: on an idle connection either means that it is of no more use."""
        return bool(self._poll(select.POLLIN, wait_seconds=0))

    def close(self) -> None:
        """Close the connection; harmless when repeated."""
        self._sock.close()

    def _send_some(self, waiting: "deque[memoryview]") -> int:
        if isinstance(self._sock, ssl.SSLSocket):
            return self._sock.send(waiting[0])
        return self._sock.sendmsg([waiting[i] for i in range(min(_PARTS_A_CALL, len(waiting)))])

    def _answered(self) -> bool:
        """Look for an answer without waiting for it, and keep it for `recv_into`."""
        if not self.is_readable():
            return False
        try:
            received = self._sock.recv(_EARLY_BYTES)
        except OSError as error:
            _wanted_event(error, select.POLLIN)
            return False
        if not received:
            raise ServiceUnreachable("the service closed the connection before it had read the request")
        self._early += received
        return True

    def _take_early(self, target: "WriteableBuffer") -> int:
        view = memoryview(target).cast("B")
        taken = min(len(view), len(self._early))
        view[:taken] = self._early[:taken]
        del self._early[:taken]
        return taken

    def _wait(self, events: int) -> None:
        """Wait until one of `events`; BudgetExceeded where the call's time, or the service's silence, is over."""
        remaining = self._armed().remaining_seconds()
        stall = self._stall_seconds
        if not self._poll(events, wait_seconds=remaining if stall is None else min(remaining, stall)):
            if stall is not None and stall < remaining:
                raise BudgetExceeded(f"the service was silent for stall_seconds ({stall:g} s)")
            raise self._armed().exceeded()

    def _armed(self) -> Deadline:
        if self._deadline is None:
            raise RuntimeError("a wire is armed with a deadline before it is used")
        return self._deadline

    def _poll(self, events: int, *, wait_seconds: float) -> list[tuple[int, int]]:
        descriptor = self._sock.fileno()
        if descriptor < 0:
            raise ServiceUnreachable("the connection was closed on this side")
        # poll, not select: an engine may hold more than 1,024 descriptors.
        poll = select.poll()
        poll.register(descriptor, events)
        return poll.poll(math.ceil(wait_seconds * 1000))

    def _try(self, step: Callable[[], object]) -> int | None:
        try:
            step()
        except OSError as error:
            return _wanted_event(error, select.POLLIN)
        return None


class _Reading(io.RawIOBase):
    """The wire as a raw stream. Its close is the base class's own: the connection outlives one answer."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        return self._wire.recv_into(buffer)


def _is_wait(error: OSError) -> bool:
    return isinstance(error, BlockingIOError | ssl.SSLWantReadError | ssl.SSLWantWriteError)


def _wanted_event(error: OSError, usual: int) -> int:
    """What to wait for after a call that would have blocked; any other error is the connection's end."""
    if isinstance(error, ssl.SSLWantReadError):
        return select.POLLIN
    if isinstance(error, ssl.SSLWantWriteError):
        return select.POLLOUT
    if isinstance(error, BlockingIOError):
        return usual
    raise ServiceUnreachable(f"the connection broke: {explained(error)}") from error


def _refill(waiting: "deque[memoryview]", rest: Iterator[memoryview]) -> bool:
    """Take what the next call can send; False where nothing is left."""
    ready_bytes = sum(map(len, waiting))
    while ready_bytes < _READY_BYTES and len(waiting) < _PARTS_A_CALL and (part := next(rest, None)) is not None:
        waiting.append(part)
        ready_bytes += len(part)
    return bool(waiting)


def _advance(waiting: "deque[memoryview]", sent_bytes: int) -> None:
    while sent_bytes:
        part = waiting.popleft()
        if sent_bytes < len(part):
            waiting.appendleft(part[sent_bytes:])
            return
        sent_bytes -= len(part)
