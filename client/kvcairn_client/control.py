"""Control plane: JSON requests through httpx, each within a total deadline.

httpx bounds every single read, not the call: a service that sends one byte a second keeps it busy for hours. So httpx
gets a transport whose network streams are this package's wires. httpcore hands its streams no more than a timeout; the
call's deadline travels beside it, in a context variable.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import httpcore
import httpx
from pydantic import BaseModel, ValidationError

from kvcairn_client.answers import error_of
from kvcairn_client.connect import Endpoint
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer, ClosedClient, ServiceUnreachable
from kvcairn_client.wire import Wire

ANSWER_BYTES = 16 << 20
"""The most that is read of a JSON answer; the largest honest one, statistics of 256 layouts, has a tenth of it."""

IDLE_CONNECTIONS = 4
IDLE_SECONDS = 60.0

_deadline: ContextVar[Deadline] = ContextVar("kvcairn_deadline")

A = TypeVar("A", bound=BaseModel)


class Control:
    """Sends JSON and reads JSON. Thread-safe."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self._http = httpx.Client(
            base_url=endpoint.address.base_url,
            headers={**headers, "Accept-Encoding": "identity", "Accept": "application/json"},
            transport=_Transport(endpoint),
            trust_env=False,
            timeout=None,  # noqa: S113 - the deadline bounds every read, write and connect
        )

    def call(self, method: str, path: str, deadline: Deadline, *, content: bytes | None = None) -> bytes:
        """One request; returns the body of a 2xx answer, raises the ClientError that any other outcome means.

        Sent twice where a connection breaks before it answered, since an idle one may have died unseen: every
        request of this API may be repeated.
        """
        token = _deadline.set(deadline)
        try:
            return self._call_once(method, path, content)
        except ServiceUnreachable:
            return self._call_once(method, path, content)
        finally:
            _deadline.reset(token)

    def ask(
        self, method: str, path: str, answer: type[A], deadline: Deadline, *, content: BaseModel | None = None
    ) -> A:
        """One request whose answer is read as `answer`; BadAnswer where it is something else."""
        encoded = None if content is None else content.model_dump_json().encode()
        return read_as(answer, self.call(method, path, deadline, content=encoded))

    def close(self) -> None:
        """Close every connection; a call that is under way fails."""
        self._http.close()

    def _call_once(self, method: str, path: str, content: bytes | None) -> bytes:
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            with self._http.stream(method, path, content=content, headers=headers) as response:
                body = _read_bounded(response.iter_raw())
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise BadAnswer(f"the answer could not be read: {error}") from error
        except RuntimeError as error:
            raise ClosedClient("the client is closed") from error
        failure = error_of(response.status_code, body, retry_after=response.headers.get("retry-after"))
        if failure is not None:
            raise failure
        return body


def read_as(answer: type[A], body: bytes) -> A:
    """Read a JSON answer; BadAnswer names the first thing that is wrong with it."""
    try:
        return answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise BadAnswer(f"the answer is no {answer.__name__}: {where}: {first['msg']}") from None


def _read_bounded(chunks: Iterator[bytes]) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > ANSWER_BYTES:
            raise BadAnswer(f"a JSON answer has at most {ANSWER_BYTES} bytes; this one goes on")
    return bytes(body)


class _Transport(httpx.BaseTransport):
    """httpx over a httpcore pool whose streams obey the deadline. Foreign errors end here."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=endpoint.tls,
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
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline bounds it
        self._wire.arm(_deadline.get())
        buffer = bytearray(max_bytes)
        received = self._wire.recv_into(buffer)
        return bytes(memoryview(buffer)[:received])

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - likewise
        self._wire.arm(_deadline.get())
        self._wire.send_all(buffer)

    def start_tls(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        """The endpoint has agreed on TLS already, within the deadline."""
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._wire.is_readable() if info == "is_readable" else None

    def close(self) -> None:
        self._wire.close()
