"""Values as people write them on the command line: strategies, sizes, durations, names and addresses."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import TenantName
from kvcairn_protocol.strategy import Anchored, Full, Periodic, StrategyAdapter, Zero

_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_HEX_32 = re.compile(r"[0-9a-f]{64}")
_PIN_ID = re.compile(r"[0-9a-f]{32}")
_TOKEN_ID = re.compile(r"[A-Za-z0-9]{1,64}")
_TENANT_NAME = TypeAdapter[str](TenantName)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)?")


def parse_strategy(text: str) -> dict[str, Any]:
    """anchored, full, zero or periodic:TOKENS, as the API's JSON."""
    kind, _, every = text.partition(":")
    document: dict[str, Any] = {"kind": kind}
    if every:
        if not every.isdigit():
            raise typer.BadParameter(f"after periodic: stands a number of tokens; found {every!r}")
        document["every_tokens"] = int(every)
    try:
        StrategyAdapter.validate_python(document)
    except ValidationError:
        raise typer.BadParameter(f"a strategy is anchored, full, zero or periodic:4096; found {text!r}") from None
    return document


def strategy_text(strategy: Full | Periodic | Zero | Anchored) -> str:
    """The inverse of `parse_strategy`."""
    return f"periodic:{strategy.every_tokens}" if isinstance(strategy, Periodic) else strategy.kind


def parse_quota(text: str) -> int | None:
    """A size such as 10GiB; None for none."""
    if text == "none":
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise typer.BadParameter(f"a size is written 10GiB, 500MB or as a number of bytes; found {text!r}") from None


def parse_ttl(text: str) -> float | None:
    """A duration such as 7d, 12h, 30min or 90s in seconds; None for none."""
    if text == "none":
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"a duration is written 7d, 12h, 30min or 90s; found {text!r}")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def parse_moment(text: str, now: float) -> float:
    """A moment in seconds since 1970: 2h, so long before `now`; 2026-07-01T12:00Z; or the seconds themselves."""
    ago = _DURATION.fullmatch(text)
    if ago is not None:
        return max(0.0, now - float(ago[1]) * _SECONDS[ago[2]]) if ago[2] else float(ago[1])
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"a moment is written 2h, 2026-07-01T12:00Z or 1782900000; found {text!r}") from None
    if named.tzinfo is None:
        raise typer.BadParameter(f"a moment names its time zone, such as {text}Z for UTC; found {text!r}")
    return named.timestamp()


def parse_key(text: str) -> str:
    """A fingerprint or a record's key."""
    if not _HEX_32.fullmatch(text):
        raise typer.BadParameter(f"a fingerprint or a key has 64 lower-case hex digits; found {text!r}")
    return text


def parse_kind(text: str) -> str:
    """A kind of record."""
    if text not in {kind.label for kind in Kind}:
        raise typer.BadParameter(f"a record's kind is history, state or window; found {text!r}")
    return text


def parse_name(text: str) -> str:
    """A tenant's name, which becomes part of a path."""
    try:
        return _TENANT_NAME.validate_python(text)
    except ValidationError:
        raise typer.BadParameter(
            f"a tenant's name has up to 63 lower-case letters, digits, dots, dashes and underscores, and begins with a "
            f"letter or digit; found {text!r}"
        ) from None


def parse_token_id(text: str) -> str:
    """A token's id, which becomes part of a path."""
    if not _TOKEN_ID.fullmatch(text):
        raise typer.BadParameter(f"a token's id has letters and digits, as `token list` shows it; found {text!r}")
    return text


def parse_pin_id(text: str) -> str:
    """A pin's id, which becomes part of a path."""
    if not _PIN_ID.fullmatch(text):
        raise typer.BadParameter(f"a pin's id has 32 hex digits, as `pins list` shows it; found {text!r}")
    return text


def parse_url(text: str) -> str | Path:
    """Where a service listens, as the client reads it: an HTTP URL or a socket's path; ValueError for no such place."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path.startswith("/"):
            raise ValueError(f"a Unix socket's URL is unix:/PATH with an absolute path; found {text!r}")
        return Path(path)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a service's URL is http://HOST:PORT, https://HOST:PORT or unix:/PATH; found {text!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"a service's URL has no user, query or fragment: {parts.hostname}")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    return text
