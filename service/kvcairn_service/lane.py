"""The lane: a large body straight from the socket into its records' buffers, past the HTTP parser.

What the parser makes of a body is copied four times before it is where it belongs. A body of known length needs no
parser: while one is read, a Lane stands in for the connection's protocol, and hands each read to the kernel with the
very bytes to be filled. It reaches into uvicorn's private fields, so `lane_check.py` tests at start that they are what
they are taken for; without a lane a body is read by `receive`, which anything else goes by anyway: small bodies,
chunked ones, TLS. Measured: docs/decisions/ingest.md.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

import httptools
from starlette.requests import Request

from kvcairn_service.connection import Connection, connection_of
from kvcairn_service.errors import BodyTimeout, Disconnected
from kvcairn_service.pace import Pace

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LEAST_BYTES = 1 << 20
"""What must be left of a body for a lane to be worth the change of protocols."""

READ_BYTES = 256 << 10
"""One read at most: the loop turns to others no sooner than a few dozen reads later."""

SMALL_BYTES = 64 << 10
LEAST_AHEAD_BYTES, MOST_AHEAD_BYTES = 16 << 10, 256 << 10
"""What is smaller than SMALL_BYTES is read ahead of, so that it does not cost a read of its own: a little where large
records come, since what was read ahead is copied, and more with each small one."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOTHING = memoryview(bytearray(0))


def lane_of(request: Request, pace: Pace) -> "Lane | None":
    """A lane for the rest of this request's body; None where `receive` has to do. To be closed by who gets it."""
    connection = connection_of(request.scope)
    length = request.headers.get("content-length")
    if connection is None or length is None or not _can_switch(connection, request):
        return None
    left_bytes = int(length) - connection.body_bytes
    return Lane(connection, left_bytes, pace) if left_bytes >= LEAST_BYTES else None


def _can_switch(connection: Connection, request: Request) -> bool:
    transport, cycle = connection.transport, connection.cycle
    return (
        connection.has_lanes
        and cycle.scope["extensions"] is request.scope["extensions"]  # and not one that came behind it
        and "transfer-encoding" not in request.headers
        and transport.get_extra_info("sslcontext") is None
        and not transport.is_closing()
    )


class Lane(asyncio.BufferedProtocol):
    """A Body (receive.py), and the connection's protocol from its making until its body has ended.

    The transport is paused unless there is something to fill: what a busy reader does not take waits in the kernel.
    """

    def __init__(self, connection: Connection, left_bytes: int, pace: Pace) -> None:
        """left_bytes: of the body, those that the parser has not seen."""
        self._connection = connection
        self._cycle: RequestResponseCycle = connection.cycle
        self._left_bytes = left_bytes
        self._pace = pace
        self._early = memoryview(bytes(self._cycle.body))
        self._ahead, self._ahead_bytes = memoryview(bytearray(MOST_AHEAD_BYTES)), LEAST_AHEAD_BYTES
        self._target, self._missing_bytes = _NOTHING, 0
        self._filled = asyncio.Event()
        self._is_closed = False
        self._cycle.body.clear()
        connection.flow.pause_reading()
        connection.transport.set_protocol(self)
        if self._cycle.waiting_for_100_continue:
            self._cycle.waiting_for_100_continue = False
            connection.transport.write(_CONTINUE)

    async def fill(self, target: memoryview) -> int:
        """See Body. BodyTimeout, Disconnected: as `bodies.pieces` raises them."""
        at = self._take_early(target)
        rest = target[at:][: self._left_bytes]
        if len(rest) >= SMALL_BYTES:
            self._ahead_bytes = LEAST_AHEAD_BYTES
            await self._receive(rest, least_bytes=len(rest))
        elif rest:
            await self._read_ahead(least_bytes=len(rest))
            self._take_early(rest)
        return at + len(rest)

    async def _read_ahead(self, *, least_bytes: int) -> None:
        ahead = self._ahead[: max(self._ahead_bytes, least_bytes)]
        self._ahead_bytes = min(2 * self._ahead_bytes, MOST_AHEAD_BYTES)
        self._early = ahead[: await self._receive(ahead, least_bytes=least_bytes)]

    def _take_early(self, target: memoryview) -> int:
        early = self._early[: len(target)]
        target[: len(early)] = early
        self._early = self._early[len(early) :]
        return len(early)

    async def _receive(self, target: memoryview, *, least_bytes: int) -> int:
        """Read until `least_bytes` are there, and what comes with them of this body; returns how many."""
        self._check()
        before_bytes = self._left_bytes
        self._expect(target, least_bytes)
        self._filled.clear()
        try:
            while self._missing_bytes > 0:
                await self._wait()
        finally:
            self._pause()
        return before_bytes - self._left_bytes

    async def _wait(self) -> None:
        """Wait until what is missing has come, or the sender's credit is used up."""
        clock = self._connection.loop.time
        before_bytes, started_seconds = self._left_bytes, clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._pace.left_seconds, 0.0)):
                await self._filled.wait()
        moved_bytes = before_bytes - self._left_bytes
        self._pace.note(waited_seconds=clock() - started_seconds, moved_bytes=moved_bytes)
        if self._missing_bytes > 0:
            self._check()
            if self._pace.is_over:
                raise BodyTimeout(f"the body brought {self._pace}")

    @property
    def _is_gone(self) -> bool:
        return bool(self._connection.transport.is_closing())

    def _check(self) -> None:
        if self._is_gone:
            raise Disconnected("the client went away before its body was complete")

    def close(self) -> None:
        """The reader is done: the connection speaks HTTP again once what is left of the body has been thrown away."""
        self._is_closed = True
        self._early = _NOTHING
        if self._left_bytes:
            self._throw_away()
        else:
            self._restore()

    def _throw_away(self) -> None:
        nowhere = memoryview(bytearray(min(self._left_bytes, READ_BYTES)))
        self._expect(nowhere, len(nowhere))

    def _restore(self) -> None:
        """As if the parser had seen the whole body: a new one starts with the next request."""
        if self._is_gone:
            return
        connection = self._connection
        connection.parser = httptools.HttpRequestParser(connection)
        connection.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        connection.transport.set_protocol(connection)
        connection.on_message_complete()
        if self._cycle.response_complete:
            connection.flow.resume_reading()

    def _expect(self, target: memoryview, least_bytes: int) -> None:
        self._target, self._missing_bytes = target[: self._left_bytes], least_bytes
        if not self._is_gone:
            self._connection.flow.resume_reading()

    def _pause(self) -> None:
        self._target = _NOTHING
        if not self._is_gone:
            self._connection.flow.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as asyncio has it
        return self._target[:READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._target = self._target[nbytes:]
        self._left_bytes -= nbytes
        self._missing_bytes -= nbytes
        if self._missing_bytes > 0:
            return
        if self._is_closed and self._left_bytes:
            self._throw_away()
            return
        self._pause()
        self._filled.set()
        if self._is_closed:
            # Not from inside the transport's own read, which goes on with the protocol that it has called.
            self._connection.loop.call_soon(self._restore)

    def connection_lost(self, exc: Exception | None) -> None:
        self._filled.set()
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
