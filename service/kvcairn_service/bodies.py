"""Request bodies: bounded in size and in time, read once, validated straight from their bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request

from kvcairn_service.auth import tenant_id_of
from kvcairn_service.errors import BodyTimeout, Disconnected, Malformed, TooLarge, WrongType
from kvcairn_service.lane import lane_of
from kvcairn_service.pace import Pace, pace_of
from kvcairn_service.questions import LONG_BYTES, parse_json, parse_long
from kvcairn_service.receive import Body
from kvcairn_service.settings import Settings
from kvcairn_service.state import Service

Model = TypeVar("Model", bound=BaseModel)


@contextlib.asynccontextmanager
async def open_body(request: Request, *, max_bytes: int, pace: Pace) -> AsyncIterator[Body]:
    """The body, to be read into buffers inside the with block: by a lane where the connection has one for it.

    Raises, and reading it raises, as `pieces` does.
    """
    check_length(request, max_bytes=max_bytes)
    lane = lane_of(request, pace)
    if lane is None:
        yield PieceBody(pieces(request, max_bytes=max_bytes, pace=pace))
        return
    try:
        yield lane
    finally:
        lane.close()


class PieceBody:
    """A body that comes in pieces, copied to where they are wanted."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    async def fill(self, target: memoryview) -> int:
        """See Body."""
        at = 0
        while at < len(target):
            if not self._rest:
                piece = await anext(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            taken = min(len(target) - at, len(self._rest))
            target[at : at + taken] = self._rest[:taken]
            self._rest = self._rest[taken:]
            at += taken
        return at


async def pieces(request: Request, *, max_bytes: int, pace: Pace) -> AsyncIterator[bytes]:
    """The body as it arrives; not read further while the consumer is busy.

    TooLarge beyond `max_bytes` (at once where Content-Length tells), BodyTimeout for one that is slower than `pace`
    allows, Disconnected for a client that went away. Time that the consumer takes does not count against the client.
    """
    check_length(request, max_bytes=max_bytes)
    clock = asyncio.get_running_loop().time
    total_bytes, more = 0, True
    while more:
        started_seconds = clock()
        message = await _next_message(request, pace)
        piece, more = message.get("body", b""), message.get("more_body", False)
        pace.note(waited_seconds=clock() - started_seconds, moved_bytes=len(piece))
        total_bytes += len(piece)
        if total_bytes > max_bytes:
            raise TooLarge(f"a body has at most {max_bytes} bytes here; this one goes on")
        if piece:
            yield piece


async def _next_message(request: Request, pace: Pace) -> Any:
    try:
        async with asyncio.timeout(max(pace.left_seconds, 0.0)):
            message = await request.receive()
    except TimeoutError:
        raise BodyTimeout(f"the body brought {pace}") from None
    if message["type"] == "http.disconnect":
        raise Disconnected("the client went away before its body was complete")
    return message


def check_length(request: Request, *, max_bytes: int) -> None:
    """Refuse a body by its Content-Length, before a byte of it is read."""
    declared = request.headers.get("content-length")
    if declared is None:
        return
    if not declared.isascii() or not declared.isdigit():
        raise Malformed(f"Content-Length is a number; found {declared!r}")
    if len(declared) > 18 or int(declared) > max_bytes:
        raise TooLarge(f"a body has at most {max_bytes} bytes here; this one declares {declared}")


async def read_body(request: Request, *, max_bytes: int, pace: Pace) -> bytes:
    """The whole body of a small request."""
    return b"".join([each async for each in pieces(request, max_bytes=max_bytes, pace=pace)])


def check_type(request: Request, allowed: Collection[str]) -> None:
    """Refuse a content type that the endpoint does not read; a JSON endpoint takes any +json, and none at all."""
    given = request.headers.get("content-type", "").split(";")[0].strip().lower()
    takes_json = "application/json" in allowed
    if given in allowed or (takes_json and (not given or given.endswith("+json"))):
        return
    raise WrongType(f"content type is {' or '.join(allowed)}; found {given or 'none'}")


async def read_json(request: Request, model: "type[Model] | TypeAdapter[Model]", settings: Settings) -> Model:
    """A request's JSON body as `model`: a short one in one pass over its bytes, long ones in turns and in slices.

    Malformed (400): no JSON. RuleBroken (422): JSON of another shape; the message names the fields.
    """
    check_type(request, ("application/json",))
    body = await read_body(request, max_bytes=settings.max_json_bytes, pace=pace_of(settings))
    if len(body) < LONG_BYTES:
        return parse_json(body, model)
    service: Service = request.app.state.service
    async with service.questions.of(tenant_id_of(request.scope)):
        return await parse_long(body, model)
