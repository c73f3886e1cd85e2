"""Control plane: JSON requests, each within a total deadline.

They go the data plane's way (exchange.py) and not through an HTTP library: a lookup is on the critical path of every
prompt, and this takes a third less time for it.
"""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kvcairn_client.connect import Endpoint
from kvcairn_client.connections import Connections
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer
from kvcairn_client.exchange import Exchanges, Request

ANSWER_BYTES = 16 << 20
"""The most that is read of a JSON answer; the largest honest one, statistics of 256 layouts, has a tenth of it."""

JSON_TYPE = "application/json"

A = TypeVar("A", bound=BaseModel)


class Control:
    """Sends JSON and reads JSON, on connections of its own. Thread-safe."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        address = endpoint.address
        self._connections = Connections(endpoint)
        self._exchanges = Exchanges(
            self._connections, authority=address.authority, prefix=address.prefix, headers=headers
        )

    def call(self, method: str, path: str, deadline: Deadline, *, content: bytes | None = None) -> bytes:
        """One request; returns the body of a 2xx answer, raises the ClientError that any other outcome means."""
        request = Request(method, path, JSON_TYPE, JSON_TYPE, [] if content is None else [content])
        with self._exchanges.send(request, deadline) as body:
            return body.read(at_most_bytes=ANSWER_BYTES)

    def ask(
        self, method: str, path: str, answer: type[A], deadline: Deadline, *, content: BaseModel | None = None
    ) -> A:
        """One request whose answer is read as `answer`; BadAnswer where it is something else."""
        encoded = None if content is None else content.model_dump_json().encode()
        return read_as(answer, self.call(method, path, deadline, content=encoded))

    def close(self) -> None:
        """Close every idle connection, and those under way when their calls end."""
        self._connections.close()


def read_as(answer: type[A], body: bytes) -> A:
    """Read a JSON answer; BadAnswer names the first thing that is wrong with it."""
    try:
        return answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise BadAnswer(f"the answer is no {answer.__name__}: {where}: {first['msg']}") from None
