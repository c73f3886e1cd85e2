"""Errors as answers: one table from error class to status, and RFC 9457 documents in one place."""

import json
import re
import secrets
from collections.abc import Mapping
from http import HTTPMethod, HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from kvcairn_protocol.errors import KvcairnError, LayoutError, RecordError, StrategyError
from kvcairn_protocol.messages import PROBLEM_TYPE
from kvcairn_service import errors
from kvcairn_storage.errors import StorageError, StoreClosed, StoreFull

STATUSES: dict[type[KvcairnError], int] = {
    errors.Malformed: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.BodyTimeout: 408,
    errors.LayoutUnknown: 409,
    errors.InUse: 409,
    errors.TooLarge: 413,
    errors.WrongType: 415,
    errors.RuleBroken: 422,
    LayoutError: 422,
    StrategyError: 422,
    RecordError: 422,
    errors.TooMany: 429,
    errors.Disconnected: 499,
    errors.Unavailable: 503,
    StoreClosed: 503,
    errors.NoSpace: 507,
    StoreFull: 507,
    StorageError: 500,
}


def status_of(error: KvcairnError) -> int:
    """The status of the nearest class that the table names; 500 for what it does not."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def problem_of(error: KvcairnError, *, request_id: str | None) -> Response:
    """The answer to an error that was raised on purpose."""
    status = status_of(error)
    headers = {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="kvcairn"'
    if isinstance(error, errors.BodyTimeout):
        headers["Connection"] = "close"
    retry = getattr(error, "retry_after_seconds", None) or (5 if isinstance(error, StoreFull) else None)
    if retry is not None:
        headers["Retry-After"] = str(spread_seconds(retry))
    return problem(
        status, kind=_kebab(type(error).__name__), detail=str(error), request_id=request_id,
        members=_members(error), headers=headers,
    )  # fmt: skip


def spread_seconds(least: int) -> int:
    """A whole number of seconds from `least` to twice that: who was refused together should not come back together."""
    return least + secrets.randbelow(least + 1)


def _members(error: KvcairnError) -> Mapping[str, Any]:
    if isinstance(error, errors.ServiceError):
        return error.members
    return {"reason": error.reason} if isinstance(error, RecordError) else {}


def problem(
    status: int,
    *,
    kind: str,
    detail: str,
    request_id: str | None = None,
    members: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One problem document. `kind` is the last part of its type; `members` extend it."""
    document = {
        "type": f"urn:kvcairn:problem:{kind}",
        "title": _title(status),
        "status": status,
        "detail": detail,
        "request_id": request_id,
        **(members or {}),
    }
    return Response(json.dumps(document), status_code=status, media_type=PROBLEM_TYPE, headers=dict(headers or {}))


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Client Closed Request"


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def request_id_of(request: Request) -> str | None:
    """The id that trace.py gave to this request."""
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found


async def answer_kvcairn_error(request: Request, error: Exception) -> Response:
    """Exception handler for everything that kvcairn raises on purpose."""
    assert isinstance(error, KvcairnError)  # noqa: S101 - registered for this class alone
    return problem_of(error, request_id=request_id_of(request))


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what Starlette's router raises: no such path, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
    detail = {
        404: f"there is nothing at {request.url.path}; /openapi.json lists what there is",
        405: f"{request.method} is not a method of {request.url.path}",
    }.get(error.status_code, str(error.detail))
    kind = _kebab(HTTPStatus(error.status_code).phrase.title().replace(" ", ""))
    headers = {"Allow": _allowed(request)} if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else error.headers
    return problem(error.status_code, kind=kind, detail=detail, request_id=request_id_of(request), headers=headers)


def _allowed(request: Request) -> str:
    """Every method of the path (RFC 9110, section 15.5.6); what the router names are those of its first route alone."""
    scopes = {method: {**request.scope, "method": method} for method in sorted(HTTPMethod)}
    return ", ".join(method for method, scope in scopes.items() if _is_routed(request.app, scope))


def _is_routed(app: Starlette, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    """Exception handler for path and query parameters that do not match their type."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class alone
    return problem_of(errors.RuleBroken(describe(error.errors())), request_id=request_id_of(request))


def describe(found: Any) -> str:
    """Pydantic's errors in one line: the first few fields, each with what is wrong with it."""
    shown = 3
    parts = [f"{_place(each['loc'])}: {each['msg'].removeprefix('Value error, ')}" for each in found[:shown]]
    more = len(found) - shown
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _place(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in location) or "body"
