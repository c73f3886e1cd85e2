"""httpx within a deadline: a transport whose network streams are this package's wires.

httpx bounds every single read, not the call: a service that sends one byte a second keeps it busy for hours. httpcore
hands its streams no more than a timeout for one read; the call's deadline travels beside it, in a context variable.
Foreign errors end here.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

from kvcairn_client.connect import Endpoint
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer, ServiceUnreachable
from kvcairn_client.wire import Wire

IDLE_CONNECTIONS = 4
IDLE_SECONDS = 60.0

_deadline: ContextVar[Deadline] = ContextVar("kvcairn_deadline")


@contextmanager
def until(deadline: Deadline) -> Iterator[None]:
    """Bound every request of this thread, inside the block, by `deadline`."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


class DeadlineTransport(httpx.BaseTransport):
    """httpx over a httpcore pool whose streams obey the deadline set by `until`. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._pool = httpcore.ConnectionPool(
            # Any: the endpoint agrees on TLS itself. None would read a file of certificates for nothing.
            ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            max_connections=None,
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Backend(endpoint),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = httpcore.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        asked = httpcore.Request(request.method, url, headers=request.headers.raw, content=request.read())
        try:
            answer = self._pool.handle_request(asked)
        except httpcore.RemoteProtocolError as error:
            raise _lost(error) from error
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._answer.iter_stream()
        except httpcore.RemoteProtocolError as error:
            raise BadAnswer(f"the answer broke off: {error}") from error

    def close(self) -> None:
        self._answer.close()


def _lost(error: httpcore.RemoteProtocolError) -> BadAnswer | ServiceUnreachable:
    """httpcore has one class for a peer that hung up and for one that talks something else."""
    if "disconnected" in str(error):
        return ServiceUnreachable("the service closed the connection without an answer")
    return BadAnswer(f"the answer is not HTTP: {error}")


class _Backend(httpcore.NetworkBackend):
    """Connects to the one endpoint of the client, whatever the URL of a request names."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def connect_tcp(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        return _Stream(self._endpoint.connect(_deadline.get()))


class _Stream(httpcore.NetworkStream):
    """A wire as httpcore wants it. What is written leaves with the first read behind it: head and body in one send."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._unsent = bytearray()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline bounds it
        self._wire.arm(_deadline.get())
        self._wire.send_all(self._unsent)
        self._unsent = bytearray()
        buffer = bytearray(max_bytes)
        received = self._wire.recv_into(buffer)
        return bytes(memoryview(buffer)[:received])

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - likewise
        self._unsent += buffer

    def start_tls(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        """The endpoint has agreed on TLS already, within the deadline."""
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._wire.is_readable() if info == "is_readable" else None

    def close(self) -> None:
        self._wire.close()
