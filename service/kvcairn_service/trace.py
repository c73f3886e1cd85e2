"""Every request's id, its line in the log, its time in the metrics, and an answer to what nobody expected.

The outermost ASGI wrapper. The id is the caller's X-Request-Id where that is sane, else a new one; answers carry it.
Tokens never reach the log: it names the tenant.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvcairn_service.connection import connection_of
from kvcairn_service.flood import Flood
from kvcairn_service.problems import problem

REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")

LOGGED_CHARACTERS = 512

log = logging.getLogger("kvcairn.access")
errors_log = logging.getLogger("kvcairn.error")

Observe = Callable[[str, str, int, float], None]
"""Called with route, method, status and seconds of every request."""


@dataclass(slots=True)
class _Answer:
    status: int = 0
    sent_bytes: int = 0


class Trace:
    """Wraps one application; `observe` takes each request's figures."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._observe = observe
        self._flood = Flood()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = choose_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        answer, started = _Answer(), time.perf_counter()
        try:
            await self._guarded(scope, receive, _counting(send, answer, request_id), answer)
        finally:
            self._note(scope, answer, seconds=time.perf_counter() - started)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send, answer: _Answer) -> None:
        request_id = scope["state"]["request_id"]
        try:
            await self._app(scope, receive, send)
        except ConnectionError as error:
            errors_log.warning("%s: %s", type(error).__name__, error, extra={"request_id": request_id})
            await _cut(scope)
        except Exception:
            errors_log.exception("unexpected error", extra={"request_id": request_id})
            if answer.status:
                await _cut(scope)
                return
            detail = f"an unexpected error; the service's log has it under the request id {request_id}"
            await problem(500, kind="internal", detail=detail, request_id=request_id)(scope, receive, send)

    def _note(self, scope: Scope, answer: _Answer, *, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        self._observe(route, scope["method"], answer.status, seconds)
        caller = scope["state"].get("caller")
        tenant = caller.tenant.name if caller is not None and caller.tenant is not None else None
        left_out = self._left_out(answer.status)
        if left_out is None:
            return
        log.info(
            "%s %s %d",
            scope["method"],
            # As it came: percent-encoded, so that no path can forge a line.
            scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:LOGGED_CHARACTERS],
            answer.status,
            extra={
                "request_id": scope["state"]["request_id"],
                "sent_bytes": answer.sent_bytes,
                "milliseconds": round(seconds * 1e3, 2),
                "tenant": tenant,
                "left_out": left_out or None,
            },
        )

    def _left_out(self, status: int) -> int | None:
        """None where a line would be one too many: of failed authentications, strangers decide how many there are."""
        return self._flood.admits(time.monotonic()) if status == HTTPStatus.UNAUTHORIZED else 0


def choose_id(offered: str | None) -> str:
    """The caller's own id where it is short and plain, else 128 random bits."""
    return offered if offered and REQUEST_ID.fullmatch(offered) else secrets.token_hex(16)


async def _cut(scope: Scope) -> None:
    connection = connection_of(scope)
    if connection is not None:
        connection.abort()
        await connection.gone.wait()


def _counting(send: Send, answer: _Answer, request_id: str) -> Send:
    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = request_id
        else:
            answer.sent_bytes += len(message.get("body", b""))
        await send(message)

    return counted
