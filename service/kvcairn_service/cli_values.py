"""Values as people write them on the command line: strategies, sizes, durations."""

import re
from typing import Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from kvcairn_protocol.strategy import Anchored, Full, Periodic, StrategyAdapter, Zero

_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
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
