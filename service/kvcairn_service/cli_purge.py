"""Commands for undoing a faulty writer: purge, tenants writers, tenants record."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from kvcairn_protocol.messages import PurgeAnswer, RecordInfo, Writers
from kvcairn_service.cli_admin import Name, show, tenants_app
from kvcairn_service.cli_asking import Asker, JsonFlag, TokenFlag, UrlFlag
from kvcairn_service.cli_output import age, fail, print_table, size
from kvcairn_service.cli_values import parse_key, parse_kind, parse_moment, parse_name

TENANT = "Whose records."
LAYOUT = "Of this layout alone: its fingerprint, as `kvcairn layouts` shows it."
WRITER = "Stored by this one alone: a token's id, admin, open or unknown; see `kvcairn tenants writers`."
SINCE = "Stored from this moment on: 2h (ago), 2026-07-01T12:00Z, or seconds since 1970."
UNTIL = "Stored before this moment."
NAMED_ONLY = "Leave what was computed from them, which is then found again once they are stored anew."


def purge_command(  # noqa: PLR0913, PLR0917 - one parameter is one flag
    tenant: Annotated[str, typer.Option(help=TENANT, callback=parse_name, show_default=False)],
    writer: Annotated[str | None, typer.Option(help=WRITER)] = None,
    since: Annotated[str | None, typer.Option(help=SINCE)] = None,
    until: Annotated[str | None, typer.Option(help=UNTIL)] = None,
    layout: Annotated[str | None, typer.Option(help=LAYOUT)] = None,
    named_only: Annotated[bool, typer.Option("--named-only", help=NAMED_ONLY)] = False,  # noqa: FBT002
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,  # noqa: FBT002
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a command-line flag
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Delete what a faulty writer stored, and all that was computed from it, whoever stored that.

    Revoke the writer's token first, and let engines that ran meanwhile start anew: they may hold copies
    (docs/operations.md, "A GPU wrote garbage").

    Examples:

        kvcairn purge --tenant agents --writer 3f9c0a51d2e7 --dry-run

        kvcairn purge --tenant agents --since 2h
    """
    now = time.time()
    named = {
        "layout": layout if layout is None else parse_key(layout),
        "writer": writer,
        "since": since if since is None else parse_moment(since, now),
        "until": until if until is None else parse_moment(until, now),
    }
    if all(value is None for value in named.values()):
        fail("name a writer, a layout, or a time (--writer, --layout, --since, --until); --since 0 is all", status=2)
    asked = {"tenant": tenant, "descendants": not named_only}
    asked |= {name: value for name, value in named.items() if value is not None}
    with Asker(url, token) as service:
        if not (yes or dry_run):
            _confirm(_purge(service, asked, dry_run=True))
        purged = _purge(service, asked, dry_run=dry_run)
    show(purged, lambda: typer.echo(_told(purged, "would go" if dry_run else "are gone")), as_json=as_json)


def _purge(service: Asker, asked: dict[str, Any], *, dry_run: bool) -> PurgeAnswer:
    body = {**asked, "dry_run": dry_run}
    return service.send("POST", "/v1/records:purge", PurgeAnswer, json=body, timeout_seconds=None)


def _told(purged: PurgeAnswer, what: str) -> str:
    return (
        f"{purged.records} records ({size(purged.stored_bytes)}) {what}, "
        f"{purged.descendants} of them for what they were computed from"
    )


def _confirm(preview: PurgeAnswer) -> None:
    typer.confirm(f"{_told(preview, 'would go')}. Delete them?", abort=True, err=True)


@tenants_app.command("writers")
def list_writers(
    name: Name,
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Who stored the records that a tenant has: token ids, admin, open, or unknown for those of an older format."""
    with Asker(url, token) as service:
        found = service.get(f"/v1/tenants/{name}/writers", Writers)
    rows = [
        (each.writer, str(each.records), size(each.stored_bytes), moment(each.first_stored), moment(each.last_stored))
        for each in found.writers
    ]
    columns = ("writer", "records", "stored", "first", "last")
    show(found, lambda: print_table(f"writers of {name}", columns, rows), as_json=as_json)


@tenants_app.command("record")
def show_record(
    name: Name,
    layout: Annotated[str, typer.Argument(help="The layout's fingerprint.", callback=parse_key)],
    kind: Annotated[str, typer.Argument(help="history, state or window.", callback=parse_kind)],
    key: Annotated[str, typer.Argument(help="The record's key.", callback=parse_key)],
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Who stored one record, and when."""
    with Asker(url, token) as service:
        found = service.get(f"/v1/tenants/{name}/records/{layout}/{kind}/{key}", RecordInfo)
    since = age(service.now_seconds - found.last_used)
    told = f"stored by {found.writer} at {moment(found.stored)}, {found.uses} uses, the last {since} ago"
    show(found, lambda: typer.echo(told), as_json=as_json)


def moment(seconds: float) -> str:
    """A moment for people, and for --since: in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
