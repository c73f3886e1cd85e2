"""What a status means: the one table from HTTP to this package's errors. Pure."""

from http import HTTPStatus
from http.client import responses

from pydantic import ValidationError

from kvcairn_client.errors import (
    BadAnswer,
    ClientError,
    LayoutUnknown,
    Refused,
    ServiceBusy,
    ServiceFailed,
    Unauthorized,
)
from kvcairn_protocol.messages import Problem

PROBLEM_BYTES = 64 << 10
"""The most that is read of an answer that says no."""

_BUSY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}
_UNAUTHORIZED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


def error_of(status: int, body: bytes, *, retry_after: str | None) -> ClientError | None:
    """The error that an answer means; None where it means success. retry_after: that header's value."""
    if 200 <= status < 300:
        return None
    problem = _problem(body)
    message = f"{status} {_detail(status, problem)}"
    if status in _BUSY:
        return ServiceBusy(message, retry_after_seconds=_retry_after_seconds(retry_after))
    if 400 <= status < 500:
        return _refusal(status, message, problem)
    if 500 <= status < 600:
        return ServiceFailed(message)
    return BadAnswer(f"a service of this API answers 2xx, 4xx or 5xx; got {message}")


def _refusal(status: int, message: str, problem: Problem | None) -> ClientError:
    if status in _UNAUTHORIZED:
        return Unauthorized(message)
    kind = LayoutUnknown if status == HTTPStatus.CONFLICT else Refused
    return kind(message, status=status, problem=problem)


def _problem(body: bytes) -> Problem | None:
    try:
        return Problem.model_validate_json(body)
    except ValidationError:
        return None


def _detail(status: int, problem: Problem | None) -> str:
    if problem is not None:
        return f"{problem.title}: {problem.detail}"
    return responses.get(status, "(no reason given)")


def _retry_after_seconds(value: str | None) -> float | None:
    """Seconds as the service sends them; a date, which it never sends, is taken as no hint."""
    return float(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 7 else None
