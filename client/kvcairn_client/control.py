"""Control plane: JSON requests through httpx, each within a total deadline (deadline_transport.py)."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from kvcairn_client.answers import error_of
from kvcairn_client.connect import Endpoint
from kvcairn_client.deadline import Deadline
from kvcairn_client.deadline_transport import DeadlineTransport, until
from kvcairn_client.errors import BadAnswer, ClosedClient, ServiceUnreachable

ANSWER_BYTES = 16 << 20
"""The most that is read of a JSON answer; the largest honest one, statistics of 256 layouts, has a tenth of it."""

A = TypeVar("A", bound=BaseModel)


class Control:
    """Sends JSON and reads JSON. Thread-safe."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self._http = httpx.Client(
            base_url=endpoint.address.base_url,
            headers={**headers, "Accept-Encoding": "identity", "Accept": "application/json"},
            transport=DeadlineTransport(endpoint),
            trust_env=False,
            timeout=None,  # noqa: S113 - the deadline bounds every read, write and connect
        )

    def call(self, method: str, path: str, deadline: Deadline, *, content: bytes | None = None) -> bytes:
        """One request; returns the body of a 2xx answer, raises the ClientError that any other outcome means.

        Sent twice where a connection breaks before it answered, since an idle one may have died unseen: every
        request of this API may be repeated.
        """
        with until(deadline):
            try:
                return self._call_once(method, path, content)
            except ServiceUnreachable:
                return self._call_once(method, path, content)

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
