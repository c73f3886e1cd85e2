"""One HTTP/1.1 request and its answer on a wire; bodies move without a copy of ours in between.

The answer's head and framing are read by http.client, which gives the body to the caller's buffer. Its errors end here.
"""

import http.client
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, cast

from kvcairn_client.answers import PROBLEM_BYTES, error_of
from kvcairn_client.connections import Connections
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer, ServiceUnreachable
from kvcairn_client.wire import Wire
from kvcairn_protocol.codec import Bytes

if TYPE_CHECKING:
    import socket


class Request(NamedTuple):
    """A POST. body: `size_bytes` in parts, sent one after the other without being joined; called for each sending."""

    path: str
    content_type: str
    accept: str
    size_bytes: int
    body: Callable[[], Iterable[Bytes]]


class Body:
    """The body of a successful answer, while it arrives. Not thread-safe."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    @property
    def content_type(self) -> str:
        return self._response.headers.get_content_type()

    @property
    def is_complete(self) -> bool:
        """Whether all of it was read, and nothing more can follow."""
        return self._response.isclosed()

    def fill(self, target: memoryview) -> int:
        """Read until `target` is full or the body ends; returns the bytes read. The wire's errors pass through."""
        with _foreign_errors():
            # One target a call: http.client would fill a larger one to its end before any of it could be verified.
            return self._response.readinto(target) if target else 0

    def read(self, *, at_most_bytes: int) -> bytes:
        """The whole body; BadAnswer where it is longer than `at_most_bytes`, or shorter than its own length says."""
        with _foreign_errors():
            body = self._response.read(at_most_bytes + 1)
        if len(body) > at_most_bytes:
            raise BadAnswer(f"this answer has at most {at_most_bytes} bytes; it goes on")
        if self._response.length:
            raise BadAnswer(f"the answer broke off with {self._response.length} bytes to come")
        return body


class Exchanges:
    """Sends requests over pooled connections. Thread-safe."""

    def __init__(self, connections: Connections, *, authority: str, prefix: str, headers: Mapping[str, str]) -> None:
        self._connections = connections
        self._prefix = prefix
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": authority, **headers}.items())

    @contextmanager
    def send(self, request: Request, deadline: Deadline, *, stall_seconds: float | None = None) -> Iterator[Body]:
        """The body of a 2xx answer, to be read inside the with block; any other outcome raises its ClientError.

        The connection is kept where the answer was read to its end, closed where it was not. Sent twice where an idle
        connection turns out dead: every request of this API may be repeated.
        """
        wire, response = self._answered(request, deadline, stall_seconds)
        body = Body(response)
        try:
            _raise_for_status(response)
            yield body
        finally:
            if body.is_complete and not response.will_close:
                self._connections.give_back(wire)
            else:
                wire.close()

    def _answered(
        self, request: Request, deadline: Deadline, stall_seconds: float | None
    ) -> tuple[Wire, http.client.HTTPResponse]:
        wire = self._connections.take_idle()
        if wire is not None:
            try:
                return wire, self._ask(wire, request, deadline, stall_seconds)
            except ServiceUnreachable:
                pass  # it died unseen while it was idle; a new one tells whether the service did
        wire = self._connections.connect(deadline)
        return wire, self._ask(wire, request, deadline, stall_seconds)

    def _ask(
        self, wire: Wire, request: Request, deadline: Deadline, stall_seconds: float | None
    ) -> http.client.HTTPResponse:
        """Send and read the answer's head; closes the wire where that fails."""
        try:
            wire.arm(deadline, stall_seconds=stall_seconds)
            all_sent = wire.send(chain([self._head(request)], request.body()))
            response = http.client.HTTPResponse(cast("socket.socket", wire), method="POST")
            with _foreign_errors():
                response.begin()
        except BaseException:
            wire.close()
            raise
        response.will_close |= not all_sent
        return response

    def _head(self, request: Request) -> bytes:
        return (
            f"POST {self._prefix}{request.path} HTTP/1.1\r\n{self._lines}Content-Type: {request.content_type}\r\n"
            f"Content-Length: {request.size_bytes}\r\nAccept: {request.accept}\r\n\r\n"
        ).encode("ascii")


def _raise_for_status(response: http.client.HTTPResponse) -> None:
    if 200 <= response.status < 300:
        return
    with _foreign_errors():
        body = response.read(PROBLEM_BYTES)
    failure = error_of(response.status, body, retry_after=response.headers.get("retry-after"))
    if failure is not None:
        raise failure


@contextmanager
def _foreign_errors() -> Iterator[None]:
    """Map the errors of http.client; those of the wire are ClientErrors already."""
    try:
        yield
    except http.client.RemoteDisconnected:
        raise ServiceUnreachable("the service closed the connection without an answer") from None
    except (http.client.HTTPException, ValueError) as error:
        raise BadAnswer(f"the answer is not HTTP as this API speaks it: {type(error).__name__} {error}") from error
