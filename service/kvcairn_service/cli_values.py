"""Values as people write them on the command line: strategies, sizes, durations, names and addresses."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from kvcairn_protocol.messages import TenantName
from kvcairn_protocol.strategy import Anchored, Full, Periodic, StrategyAdapter, Zero

_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
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
