"""One HTTP connection: uvicorn's protocol, tuned for large bodies and bounded against clients that dawdle.

Why these figures: docs/decisions/data-plane.md. The transport's buffer is kept empty (high=0), so that "paused" means
"something is unsent", and the socket's own buffer is large enough to keep the network busy between two records.
"""

import asyncio
import contextlib
import fcntl
import json
import secrets
import socket
import sys
import termios
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.messages import PROBLEM_TYPE
from kvcairn_service.crowd import Crowd
from kvcairn_service.heads import (
    MAX_HEAD_BYTES,
    TOO_LARGE,
    TRAILERS_TOO_LARGE,
    BadHead,
    HeadTooLarge,
    check_head,
    is_too_large,
    without_upgrade,
)
from kvcairn_service.hosts import is_loopback
from kvcairn_service.pace import Pace

UNIX_SEND_BYTES, LOOPBACK_SEND_BYTES = 4 << 20, 512 << 10
"""The socket's buffer: on the same host by TCP no more than what stays in the processor's caches until it is read,
which is a third faster than 4 MiB; towards other hosts the kernel finds out what the way there takes."""

EXTENSION = "kvcairn.connection"


class Stalled(ConnectionError):
    """The reader takes what it asked for too slowly, or not at all; its connection is to be cut."""


class Gone(ConnectionError):
    """The client closed the connection; what is sent to it now reaches nobody."""


class AlreadySent(int):
    """Stands for so many bytes of a body that are on the socket by another way: counted as sent, and not sent again."""

    def __len__(self) -> int:
        return int(self)


class Transport:
    """An asyncio transport that lets AlreadySent pass by, and drops what is written once it closes.

    uvicorn tells only the last of several requests that the connection is lost, and uvloop raises at what the others
    still write. All else is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Bytes | AlreadySent) -> None:
        if not isinstance(data, AlreadySent) and not self._transport.is_closing():
            self._transport.write(data)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds. Subclassed with the service's settings by `connection_class`."""

    header_seconds = 20.0
    crowd = Crowd(1024)
    """Of all connections of the class."""

    has_lanes = False
    """Whether large bodies may go past the parser (lane.py); set once that was tested."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.gone = asyncio.Event()
        self._room = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._in_message = False
        self._in_head = False
        self._is_upgrade = self._brings_body = False
        self._head_bytes = self._between_bytes = 0
        self._reading = b""
        self._cycles: list[RequestResponseCycle] = []
        self.body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = Transport(transport)  # type: ignore[assignment]  # a transport in all but its type
        leaving = self.crowd.join(self)
        if leaving is self:
            self._refuse(503, f"more than {self.crowd.most} connections at once")
            return
        if isinstance(leaving, Connection):
            leaving.transport.close()
        # Under TLS the loops pause the writer at the limit itself, so that 0 would never let it go on.
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0)
        _size_buffer(transport.get_extra_info("socket"), transport.get_extra_info("peername"))
        self._set_deadline(self.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._room.set()
        self._clear_deadline()
        self.crowd.leave(self)
        self._disconnect_cycles()
        super().connection_lost(exc)

    def _disconnect_cycles(self) -> None:
        """uvicorn tells the last of several requests alone, and takes it for a fault when an earlier one then ends."""
        for cycle in self._cycles:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, with a bound on the head's size and on the time until it is complete."""
        if self.transport.is_closing():
            return
        self._reading, self._brings_body = data, False
        super().data_received(data)
        self._bound_between(0 if self._brings_body else len(data))
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, TOO_LARGE)
        elif self._deadline is None and self._is_idle:
            # Empty lines, or the rest of a body that nobody read, have ended uvicorn's own wait for the next request.
            self._set_deadline(self.header_seconds)

    def _bound_between(self, size_bytes: int) -> None:
        """Trailers and what stands beside a chunk's size are of no use here, and brought no byte of the body."""
        between = self._in_message and not self._in_head and not self.transport.is_closing()
        self._between_bytes = self._between_bytes + size_bytes if between and size_bytes else 0
        if self._between_bytes <= MAX_HEAD_BYTES:
            return
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self._refuse(431, TRAILERS_TOO_LARGE)

    @property
    def is_answering(self) -> bool:
        """See Guest."""
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    @property
    def is_receiving(self) -> bool:
        """See Guest."""
        return self._in_message

    def recognise(self, tenant: str) -> None:
        """A request of this tenant has come."""
        self.crowd.recognise(self, tenant)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being received or answered, and uvicorn does not wait for the next one either."""
        return not (self._in_message or self.is_answering or self.timeout_keep_alive_task)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._is_upgrade = False
        self._head_bytes = self._between_bytes = self.body_bytes = 0
        self._set_deadline(self.header_seconds)
        scope: Scope = self.scope  # type: ignore[assignment]
        scope["extensions"] = {EXTENSION: self}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here as well, when the headers were read long ago: none of them counts for anything."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._has_come_on = False, True
        self._clear_deadline()
        # What a callback raises ends in `send_400_response`, before an application sees the request.
        if is_too_large(self.url, self.headers):
            raise HeadTooLarge(TOO_LARGE)
        method, version = self.parser.get_method(), self.parser.get_http_version()
        check_head(version=version, method=method, target=self.url, headers=self.headers)
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return  # to be read again, without that wish
        super().on_headers_complete()
        self._cycles = [each for each in self._cycles if not each.response_complete] + [self.cycle]

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        self._brings_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._in_message = False
        self._clear_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_message:
            # What is left of a body that nobody will read is thrown away as it comes, but not for ever.
            self._set_deadline(self.header_seconds)

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's word where a request wished for another protocol, of which the parser reads the head alone.

        uvicorn would take its body for the next request, and drop what came with it.
        """
        at: int = sys.exc_info()[1].args[0]  # type: ignore[union-attr]  # an httptools.HttpParserUpgrade
        method, version = self.parser.get_method(), self.parser.get_http_version()
        head = without_upgrade(version=version, method=method, target=self.url, headers=self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        super().data_received(head + self._reading[at:])

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what its parser refuses; a problem document here."""
        error = sys.exc_info()[1]
        ours = error.__context__ if error is not None else None
        if isinstance(ours, HeadTooLarge):
            self._refuse(431, str(ours))
        elif isinstance(ours, BadHead):
            self._refuse(400, str(ours))
        else:
            self._refuse(400, f"no HTTP/1.1: {error}" if error is not None else msg)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer without an application, and close; without a word, and later, where another answer is due first."""
        if self.transport.is_closing():
            return
        if self._is_another_due():
            # Written now, it would be taken for that answer, or for bytes in the middle of it.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        phrase, request_id = HTTPStatus(status).phrase, secrets.token_hex(16)
        problem = {
            "type": f"urn:kvcairn:problem:{phrase.lower().replace(' ', '-')}",
            "title": phrase,
            "status": status,
            "detail": detail,
            "request_id": request_id,
        }
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {PROBLEM_TYPE}\r\nx-request-id: {request_id}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _is_another_due(self) -> bool:
        """Whether an answer is under way, or owed to a request that came whole before what is being read now."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return bool(self.pipeline) or cycle.response_started or not cycle.more_body

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # The next request's head dawdles behind an answer that is still on its way: let that end first.
            self._set_deadline(self.header_seconds)
        else:
            self._deadline = None
            self.transport.abort()

    @property
    def descriptor(self) -> int | None:
        """The socket's, where what is written to it is what the peer gets; None under TLS."""
        is_plain = self.transport.get_extra_info("sslcontext") is None
        return self.transport.get_extra_info("socket").fileno() if is_plain else None

    def abort(self) -> None:
        """Cut the connection at once; what is unsent is dropped. `gone` is set a moment later."""
        if not self.gone.is_set():
            self.transport.abort()

    def check(self) -> None:
        """Gone if nobody is there any more: uvicorn drops what is sent to a lost connection without a word."""
        # The transport knows a turn of the loop before the protocol is told.
        if self.gone.is_set() or self.transport.is_closing():
            raise Gone("the client went away before its answer was complete")

    async def flushed(self, pace: Pace) -> None:
        """Wait until nothing is unsent; Stalled if the reader is slower than `pace` allows, Gone if it left."""
        self.check()
        while self.flow.write_paused:
            await self._wait_for(self.flow.drain(), pace)

    async def room(self, descriptor: int, pace: Pace) -> float:
        """Wait until the kernel has room for more; returns for how long. Stalled, Gone: as `flushed`.

        descriptor: a duplicate of the socket's, which the transport does not watch.
        """
        started_seconds = self.loop.time()
        self._room.clear()
        self.loop.add_writer(descriptor, self._room.set)
        try:
            while not self._room.is_set():
                await self._wait_for(self._room.wait(), pace)
        finally:
            self.loop.remove_writer(descriptor)
        self.check()
        return self.loop.time() - started_seconds

    async def _wait_for(self, moved: Awaitable[object], pace: Pace) -> None:
        """Wait within the reader's credit, and settle it by what the reader has taken meanwhile."""
        waiting_bytes, started_seconds = self._waiting_bytes(), self.loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pace.left_seconds):
                await moved
        self.check()
        moved_bytes = waiting_bytes - self._waiting_bytes()
        pace.note(waited_seconds=self.loop.time() - started_seconds, moved_bytes=moved_bytes)
        if pace.is_over:
            raise Stalled(f"the reader took {pace}")

    def _waiting_bytes(self) -> int:
        """What the peer has not taken yet, in the transport and in the kernel.

        The transport alone would not tell a slow reader from none: the kernel asks for more only once a third of its
        own buffer is free.
        """
        sock: socket.socket = self.transport.get_extra_info("socket")
        queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


def _size_buffer(sock: socket.socket, peer: Any) -> None:
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
    elif peer and is_loopback(peer[0]):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOOPBACK_SEND_BYTES)


def connection_class(*, header_seconds: float, max_connections: int) -> type[Connection]:
    """The class to hand to uvicorn, which makes the objects itself."""
    bounds = {"header_seconds": header_seconds, "crowd": Crowd(max_connections)}
    return type("Connection", (Connection,), bounds)


def connection_of(scope: Scope) -> Connection | None:
    """The connection that a request came on; None under another server than ours."""
    found: Connection | None = scope.get("extensions", {}).get(EXTENSION)
    return found
