"""Which requests the audit log notes: an ASGI wrapper around the gate, so that it sees who was let in and who was not.

The line is written before the answer's first byte leaves. Requests that do not change anything are not noted, and of
refusals, which strangers can make as many of as they like, no more than the log can bear (flood.py).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvcairn_service.audit import NOBODY, Entry
from kvcairn_service.auth import ADMIN, Caller
from kvcairn_service.flood import Flood
from kvcairn_service.state import Service


class By(Enum):
    """Whose doing it an action must be to be noted."""

    ANYBODY = "nobody but an admin may, so that every try counts"
    ADMIN = "an admin's, also of an open service; a tenant's own is no admin action"
    ADMIN_TOKEN = "the admin's of a closed service; in an open one every engine does it"  # noqa: S105 - a reason


ACTIONS: Mapping[tuple[str, str], tuple[str, By]] = {
    ("PUT", "/v1/tenants/{name}"): ("tenant.put", By.ANYBODY),
    ("PATCH", "/v1/tenants/{name}"): ("tenant.patch", By.ANYBODY),
    ("DELETE", "/v1/tenants/{name}"): ("tenant.delete", By.ANYBODY),
    ("POST", "/v1/tenants/{name}/tokens"): ("token.make", By.ANYBODY),
    ("DELETE", "/v1/tenants/{name}/tokens/{token_id}"): ("token.revoke", By.ANYBODY),
    ("POST", "/v1/records:purge"): ("records.purge", By.ANYBODY),
    ("POST", "/v1/prefixes:pin"): ("prefix.pin", By.ADMIN_TOKEN),
    ("DELETE", "/v1/pins/{id}"): ("pin.remove", By.ADMIN_TOKEN),
    ("DELETE", "/v1/layouts/{fingerprint}"): ("layout.delete", By.ADMIN),
}
_COMPILED = [(method, compile_path(path)[0], action, by) for (method, path), (action, by) in ACTIONS.items()]

_CHEAP = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
)
"""Refusals that anybody can get without end."""

_LOGGED_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Action:
    """What a request asks for. names: from its path."""

    name: str
    by: By
    names: Mapping[str, str]


def action_of(method: str, path: str) -> Action | None:
    """The action to be noted; None for all other requests. Pure."""
    for each, pattern, name, by in _COMPILED:
        if each == method and (found := pattern.match(path)):
            return Action(name, by, {key: value[:_LOGGED_CHARACTERS] for key, value in found.groupdict().items()})
    return None


def describe(request: Request, **details: Any) -> None:
    """Add to the line of this request what only its route knows, such as the id of a new token; never its text."""
    request.scope["state"].setdefault("audit", {}).update(details)


class Audited:
    """Wraps one application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._flood = Flood()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        action = action_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if action is None:
            await self._app(scope, receive, send)
            return
        is_noted = False

        async def noted(message: Message) -> None:
            nonlocal is_noted
            if message["type"] == "http.response.start":
                is_noted = True
                await self._note(scope, action, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except BaseException:
            if not is_noted:
                await self._note(scope, action, HTTPStatus.INTERNAL_SERVER_ERROR)
            raise

    async def _note(self, scope: Scope, action: Action, status: int) -> None:
        caller: Caller | None = scope["state"].get("caller")
        if not _counts(action.by, caller):
            return
        details = dict(scope["state"].get("audit", {}))
        if status in _CHEAP:
            left_out = self._flood.admits(time.monotonic())
            if left_out is None:
                return
            details |= {"left_out": left_out} if left_out else {}
        await self._service.audit.note(_entry(scope, action, status, caller, details))


def _counts(by: By, caller: Caller | None) -> bool:
    if by is By.ANYBODY:
        return True
    if caller is None:
        return False
    return caller.is_admin if by is By.ADMIN else caller.writer == ADMIN


def _entry(scope: Scope, action: Action, status: int, caller: Caller | None, details: Mapping[str, Any]) -> Entry:
    names = {**action.names, **details}
    tenant = names.pop("name", None) or names.pop("tenant", None)
    return Entry(
        who=(caller.writer or "metrics") if caller else NOBODY,
        action=action.name,
        outcome=_outcome(status),
        tenant=tenant,
        origin=_origin(scope),
        status=int(status),
        request_id=scope["state"].get("request_id"),
        details=names,
    )


def _outcome(status: int) -> str:
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"


def _origin(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client and client[0] else "unix"
