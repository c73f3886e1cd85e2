"""A service in a thread, for tests of whoever uses a client: small, in memory, honest until told to be faulty.

It keeps what is stored and answers as docs/wire.md says, as far as a client can tell; `faults` (faults.py) change the
answers of one path, `early` answers one path without reading the request's body.
"""

import contextlib
import socket
import socketserver
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvcairn_client.faults import Answer, Fault, HangUp, Pause, honest, problem
from kvcairn_client.testing_shelf import Shelf

EARLY_SECONDS = 5.0
"""How long an early answer's connection stays open, unread."""


class FakeService:
    """Listens from the start until `close`. Attributes may be changed at any time; counts only grow.

    shelf: what is stored. faults: path → fault. early: path → answer sent before the body is read, after which
    nothing more is read. seen: method and path of every request. accepted: connections so far.
    """

    def __init__(
        self, *, port: int = 0, uds: Path | None = None, tls: ssl.SSLContext | None = None, shelf: Shelf | None = None
    ) -> None:
        self.shelf = shelf or Shelf()
        self.faults: dict[str, Fault] = {}
        self.early: dict[str, Answer] = {}
        self.seen: list[str] = []
        self.tokens: set[str] = set()
        self.stopped = threading.Event()
        self._server = _listen(port, uds, tls)
        self._server.service = self
        self._scheme = "https" if tls is not None else "http"
        self._uds = uds
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fake-service")
        self._thread.start()

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"unix:{self._uds}" if self._uds else f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._server.server_address[1])

    @property
    def accepted(self) -> int:
        """Connections accepted so far."""
        return self._server.accepted

    def hang_up(self) -> None:
        """Close every connection, as a restart does."""
        self._server.hang_up()

    def close(self) -> None:
        """Stop listening and close every connection."""
        self.stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    """One connection; its requests one after the other."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        """End the connection; what the peer did to it meanwhile is no concern of a test."""
        self.server.closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def _serve(self) -> None:
        service = self.server.service
        service.seen.append(f"{self.command} {self.path}")
        if (early := service.early.get(self.path)) is not None:
            self.wfile.write(early.head + early.body)
            self.close_connection = True
            service.stopped.wait(EARLY_SECONDS)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._act(service.faults.get(self.path, honest), self._reply(service, body))

    def _reply(self, service: FakeService, body: bytes) -> Answer:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if service.tokens and token not in service.tokens:
            return problem(401, extra="WWW-Authenticate: Bearer\r\n")
        return service.shelf.reply(self.command, self.path, body)

    def _act(self, fault: Fault, given: Answer) -> None:
        for step in fault(given):
            if isinstance(step, HangUp):
                self.close_connection = True
                return
            if isinstance(step, Pause):
                if self.server.service.stopped.wait(step.seconds):
                    self.close_connection = True
                    return
            else:
                self.wfile.write(step)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Knows its open connections, so that it can hang up on them."""

    allow_reuse_address = True
    daemon_threads = True
    service: FakeService

    def __init__(self, address: Any, tls: ssl.SSLContext | None = None) -> None:
        self.accepted = 0
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; the TLS handshake is the handler's first read, so that a slow one holds nobody up."""
        connection, peer = super().get_request()
        if self.address_family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        if self._tls is None:
            return connection, peer
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def hang_up(self) -> None:
        """End every open connection; their handlers notice."""
        with self._lock:
            doomed = list(self._open)
        for connection in doomed:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is what these tests are about; anything else is a mistake in the fake, and is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _UnixServer(_Server):
    address_family = socket.AF_UNIX


def _listen(port: int, uds: Path | None, tls: ssl.SSLContext | None) -> _Server:
    return _Server(("127.0.0.1", port), tls) if uds is None else _UnixServer(str(uds), tls)
