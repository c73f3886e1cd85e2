"""One HTTP connection: uvicorn's protocol, tuned for large bodies and bounded against clients that dawdle.

Why these figures: docs/decisions/data-plane.md. The transport's buffer is kept empty (high=0), so that "paused" means
"something is unsent", and the socket's own buffer is large enough to keep the network busy between two records.
"""

import asyncio
import json
import socket
from http import HTTPStatus
from typing import Any

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kvcairn_protocol.messages import PROBLEM_TYPE

SEND_BUFFER_BYTES = 4 << 20
MAX_HEAD_BYTES = 64 << 10
EXTENSION = "kvcairn.connection"


class Stalled(ConnectionError):
    """The reader took nothing for as long as it may; its connection has been cut."""


class HeadTooLarge(ValueError):
    """A request's line and headers are over the limit."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds. Subclassed with the service's settings by `connection_class`."""

    header_seconds = 20.0
    max_connections = 1024

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.gone = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._in_message = False
        self._in_head = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, f"more than {self.max_connections} connections at once")
            return
        transport.set_write_buffer_limits(high=0)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._deadline is None and not self._in_message:
            self._set_deadline()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, _HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._head_bytes = 0
        scope: Scope = self.scope  # type: ignore[assignment]
        scope["extensions"] = {EXTENSION: self}

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            raise HeadTooLarge
        self._clear_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_message = False
        self._clear_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_message:
            # What is left of a body that nobody will read is thrown away as it comes, but not for ever.
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what its parser refuses; a problem document here."""
        too_large = self._in_message and not self._in_head and self._head_bytes == 0 and self._is_head_too_large()
        if too_large:
            self._refuse(431, _HEAD_TOO_LARGE)
        else:
            self._refuse(400, msg)

    def _is_head_too_large(self) -> bool:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES

    def _refuse(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        phrase = HTTPStatus(status).phrase
        kind = phrase.lower().replace(" ", "-")
        problem = {"type": f"urn:kvcairn:problem:{kind}", "title": phrase, "status": status, "detail": detail}
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {PROBLEM_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _set_deadline(self) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(self.header_seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        self.transport.abort()

    @property
    def lost(self) -> bool:
        return self.gone.is_set()

    def abort(self) -> None:
        """Cut the connection at once; what is unsent is dropped. `gone` is set a moment later."""
        if not self.lost:
            self.transport.abort()

    async def flushed(self, *, stall_seconds: float) -> None:
        """Wait until nothing is unsent; Stalled, and cut, if the reader takes nothing for `stall_seconds`."""
        while self.flow.write_paused and not self.lost:
            unsent_bytes = self.transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(stall_seconds):
                    await self.flow.drain()
            except TimeoutError:
                if self.transport.get_write_buffer_size() >= unsent_bytes:
                    self.abort()
                    raise Stalled(f"the reader took nothing for {stall_seconds:g} s") from None


_HEAD_TOO_LARGE = f"a request's line and headers have at most {MAX_HEAD_BYTES} bytes"


def connection_class(*, header_seconds: float, max_connections: int) -> type[Connection]:
    """The class to hand to uvicorn, which makes the objects itself."""
    bounds = {"header_seconds": header_seconds, "max_connections": max_connections}
    return type("Connection", (Connection,), bounds)


def connection_of(scope: Scope) -> Connection | None:
    """The connection that a request came on; None under another server than ours."""
    found: Connection | None = scope.get("extensions", {}).get(EXTENSION)
    return found
