"""Commands for pins: prefixes that a tenant keeps from eviction."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from kvcairn_protocol.messages import Pin, PinRequest, Pins, PrefixRequest
from kvcairn_service.cli_asking import Asker, JsonFlag, TokenFlag, UrlFlag
from kvcairn_service.cli_output import age, fail, print_json, print_table, size
from kvcairn_service.cli_values import parse_name, parse_pin_id, parse_ttl

pins_app = typer.Typer(no_args_is_help=True, help="Prefixes that the caller's tenant keeps from eviction.")

PREFIX = "JSON file with layout and block_keys, as a lookup takes them; - reads it from the standard input."
NAME = "A name for it: what had the name is replaced."


@pins_app.command("make")
def make_pin(
    prefix: Annotated[Path, typer.Argument(help=PREFIX)],
    ttl: Annotated[str, typer.Option(help="How long it stays pinned, such as 7d.")],
    name: Annotated[str | None, typer.Option(help=NAME)] = None,
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Pin what is stored of a prefix, or renew its pin.

    Examples:

        kvcairn pins make system-prompt.json --ttl 7d --name system-prompt
    """
    asked = _request(_read(prefix), place=prefix, ttl=ttl, name=name)
    with Asker(url, token) as service:
        made = service.send("POST", "/v1/prefixes:pin", Pin, json=asked.model_dump(exclude_none=True))
        now_seconds = service.now_seconds
    print_json(made) if as_json else draw_pins(f"pin {made.id}", [made], now_seconds=now_seconds)


def _read(place: Path) -> str:
    if str(place) == "-":
        return sys.stdin.read()
    try:
        return place.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{place} cannot be read: {error}", status=2)


def _request(text: str, *, place: Path, ttl: str, name: str | None) -> PinRequest:
    ttl_seconds = parse_ttl(ttl)
    if not ttl_seconds:
        raise typer.BadParameter("a pin has an end, such as 7d; none is no duration here")
    try:
        prefix = PrefixRequest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        fail(f'{place} is no {{"layout": hex, "block_keys": [hex, …]}}: {where}: {first["msg"]}', status=2)
    checked = parse_name(name) if name is not None else None
    return PinRequest(layout=prefix.layout, block_keys=prefix.block_keys, ttl_seconds=ttl_seconds, name=checked)


@pins_app.command("list")
def list_pins(
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """The caller's pins, and how many of their records are there."""
    with Asker(url, token) as service:
        found = service.get("/v1/pins", Pins)
        now_seconds = service.now_seconds
    title = f"{size(found.pinned_bytes)} pinned of {size(found.pin_quota_bytes)}"
    print_json(found) if as_json else draw_pins(title, found.pins, now_seconds=now_seconds)


@pins_app.command("remove")
def remove_pin(
    pin_id: Annotated[str, typer.Argument(help="The pin's id, as `list` shows it.", callback=parse_pin_id)],
    url: UrlFlag = None,
    token: TokenFlag = None,
) -> None:
    """Let a pin go; its records stay until they are evicted like any others."""
    with Asker(url, token) as service:
        service.delete(f"/v1/pins/{pin_id}")
    typer.echo(f"pin {pin_id} is gone")


def draw_pins(title: str, pins: list[Pin], *, now_seconds: float) -> None:
    columns = ("pin", "name", "layout", "tokens", "states", "there", "charged", "ends in")
    rows = [
        (
            each.id, each.name or "", each.layout[:12], str(each.pinned_tokens), str(len(each.state_tokens)),
            f"{each.present_records}/{each.records}", size(each.charged_bytes),
            age(max(0.0, each.expires - now_seconds)),
        )
        for each in pins
    ]  # fmt: skip
    print_table(title, columns, rows)
