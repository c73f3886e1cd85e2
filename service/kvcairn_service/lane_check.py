"""Whether lanes work here: one request through one, at start, on a pair of sockets.

A lane depends on fields of uvicorn that no version promises, and on how the loop's transport changes protocols. Where
this finds anything else than what was sent, bodies are read by the plain way.
"""

import asyncio
import contextlib
import hashlib
import logging
import socket

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from kvcairn_service.connection import Connection
from kvcairn_service.lane import LEAST_BYTES, lane_of
from kvcairn_service.pace import Pace

CHECK_SECONDS = 5.0
_LOG = logging.getLogger(__name__)
_BODY = bytes(range(256)) * (LEAST_BYTES // 128)


async def lanes_work(protocol: type[Connection]) -> bool:
    """Whether two uploads on one connection, one read whole and one in part, come out as they went in."""
    checked, problem = type("Checked", (protocol,), {"has_lanes": True}), "other bytes than were sent"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            if await _upload_twice(checked):
                return True
    except Exception as error:  # whatever it is, there is another way to read a body
        problem = repr(error)
    _LOG.warning("large bodies are read the plain way: a lane failed its test: %s", problem)
    return False


async def _upload_twice(protocol: type[Connection]) -> bool:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    config = Config(_answer_digest, log_config=None, lifespan="off", ws="none")
    transport, _ = await loop.connect_accepted_socket(lambda: protocol(config, ServerState(), {}), theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    with contextlib.closing(transport), contextlib.closing(writer):
        return all([await _upload(reader, writer, path) for path in ("whole", "part")])


async def _upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bool:
    """One body goes out once it is asked for, the other at once, so that the parser sees the first of it."""
    head = f"POST /{path} HTTP/1.1\r\nhost: check\r\ncontent-length: {len(_BODY)}\r\n"
    if path == "whole":
        writer.write(f"{head}expect: 100-continue\r\n\r\n".encode())
        await reader.readuntil(b"100 Continue\r\n\r\n")
        writer.write(_BODY)
    else:
        writer.write(f"{head}\r\n".encode() + _BODY)
    answer = await reader.readuntil(b"\r\n\r\n")
    return answer.startswith(b"HTTP/1.1 200 ") and await reader.readexactly(32) == _expected(path)


def _expected(path: str) -> bytes:
    return hashlib.sha256(_BODY if path == "whole" else _BODY[:LEAST_BYTES]).digest()


async def _answer_digest(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the digest of the body, or of its first part, as a lane brings it; the rest is left unread."""
    request = Request(scope, receive)
    target = memoryview(bytearray(len(_BODY) if scope["path"] == "/whole" else LEAST_BYTES))
    lane = lane_of(request, Pace(stall_seconds=CHECK_SECONDS, bytes_per_second=1))
    if lane is None:
        raise RuntimeError("the connection makes no lane")
    with contextlib.closing(lane):
        await lane.fill(target)
    await Response(hashlib.sha256(target).digest())(scope, receive, send)
