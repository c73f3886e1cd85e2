"""Commands that ask a running service: stats, layouts, tenants."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from kvcairn_protocol.messages import (
    Layouts,
    ServiceStats,
    Tenant,
    Tenants,
    TenantStats,
    TokenCreated,
    Tokens,
)
from kvcairn_service.cli_asking import Asker, JsonFlag, TokenFlag, UrlFlag
from kvcairn_service.cli_output import age, print_json, print_table, share, size
from kvcairn_service.cli_values import parse_name, parse_quota, parse_strategy, parse_token_id, parse_ttl, strategy_text

tenants_app = typer.Typer(no_args_is_help=True, help="Tenants: who may store what, and how. For the admin.")
tokens_app = typer.Typer(no_args_is_help=True, help="A tenant's bearer tokens.")
tenants_app.add_typer(tokens_app, name="token")


def show(document: BaseModel, draw: Callable[[], None], *, as_json: bool) -> None:
    """Print the document as JSON, or draw it for people."""
    if as_json:
        print_json(document)
    else:
        draw()


def stats_command(
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
    everyone: Annotated[bool, typer.Option("--all", help="Every tenant, for the admin.")] = False,  # noqa: FBT002
) -> None:
    """Records, bytes, lookups and hits, by kind and layout.

    Examples:

        kvcairn stats

        kvcairn stats --all --json --url unix:/run/kvcairn.sock
    """
    with Asker(url, token) as service:
        if everyone:
            every = service.get("/v1/stats/all", ServiceStats)
            show(every, lambda: draw_service(every), as_json=as_json)
        else:
            mine = service.get("/v1/stats", TenantStats)
            show(mine, lambda: draw_tenant(mine), as_json=as_json)


def draw_service(stats: ServiceStats) -> None:
    used = share(stats.charged_bytes, stats.capacity_bytes)
    title = f"{size(stats.charged_bytes)} of {size(stats.capacity_bytes)} used ({used}), up {age(stats.uptime_seconds)}"
    columns = ("tenant", "records", "charged", "quota", "lookups", "asked", "hit")
    rows = [
        (
            each.tenant, str(each.records), size(each.charged_bytes), size(each.quota_bytes), str(each.lookups),
            str(each.asked_tokens), share(each.hit_tokens, each.asked_tokens),
        )
        for each in stats.tenants
    ]  # fmt: skip
    print_table(title, columns, rows)


def draw_tenant(stats: TenantStats) -> None:
    hit = share(stats.hit_tokens, stats.asked_tokens)
    title = (
        f"tenant {stats.tenant}: {stats.records} records, {size(stats.stored_bytes)} stored, "
        f"{size(stats.charged_bytes)} charged, {size(stats.pinned_bytes)} pinned, "
        f"{stats.lookups} lookups, {hit} of asked tokens hit"
    )
    worth = [
        (
            each.layout[:12], each.kind, str(each.records), size(each.stored_bytes), str(each.reused_records),
            str(each.uses), age(each.oldest_seconds), age(each.idle_seconds),
        )
        for each in stats.kinds
    ]  # fmt: skip
    print_table(title, ("layout", "kind", "records", "stored", "reused", "uses", "oldest", "idle"), worth)
    typer.echo()
    gone = [
        (
            each.layout[:12], each.kind, size(each.raw_bytes), str(each.evicted_records), size(each.evicted_bytes),
            str(each.expired_records), str(each.quarantined_records),
        )
        for each in stats.kinds
    ]  # fmt: skip
    columns = ("layout", "kind", "raw", "evicted", "evicted bytes", "expired", "bad")
    print_table("decoded size, and what went since the start", columns, gone)


def layouts_command(
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """The layouts that are registered for the caller's tenant."""
    with Asker(url, token) as service:
        found = service.get("/v1/layouts", Layouts)
    rows = [(each.fingerprint, each.model, str(each.block_tokens), str(each.layers)) for each in found.layouts]
    columns = ("fingerprint", "model", "block tokens", "layers")
    show(found, lambda: print_table("layouts", columns, rows), as_json=as_json)


def draw_tenants(*tenants: Tenant) -> None:
    columns = ("tenant", "strategy", "codec", "quota", "pins", "ttl", "encrypted")
    rows = [
        (
            each.name, strategy_text(each.strategy), each.codec, size(each.quota_bytes),
            "a tenth" if each.pin_quota_bytes is None else size(each.pin_quota_bytes),
            "none" if each.ttl_seconds is None else age(each.ttl_seconds), "yes" if each.encrypt else "no",
        )
        for each in tenants
    ]  # fmt: skip
    print_table("tenants", columns, rows)


@tenants_app.command("list")
def list_tenants(
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Every tenant and its settings."""
    with Asker(url, token) as service:
        found = service.get("/v1/tenants", Tenants)
    show(found, lambda: draw_tenants(*found.tenants), as_json=as_json)


NAME = "The tenant's name: lower-case letters, digits, dots, dashes, underscores."
Name = Annotated[str, typer.Argument(help=NAME, callback=parse_name)]
STRATEGY = "Where state is kept: anchored, full, zero, or periodic:4096."
CODEC = "How the writer encodes: auto, raw, zstd or shuffle-zstd."


@tenants_app.command("set")
def set_tenant(  # noqa: PLR0913, PLR0917 - one parameter is one flag
    name: Name,
    strategy: Annotated[str | None, typer.Option(help=STRATEGY)] = None,
    codec: Annotated[str | None, typer.Option(help=CODEC)] = None,
    quota: Annotated[str | None, typer.Option(help="At most this much, such as 10GiB; none for no limit.")] = None,
    pin_quota: Annotated[
        str | None, typer.Option(help="Of which pins may keep this much; 0: no pins; none: a tenth.")
    ] = None,
    encrypt: Annotated[bool | None, typer.Option(help="Encrypt values on the disk.", show_default=False)] = None,
    ttl: Annotated[
        str | None, typer.Option(help="Drop what was not used for so long, such as 7d; none: never.")
    ] = None,
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Make a tenant, or change what is named and keep the rest.

    Examples:

        kvcairn tenants set research --strategy periodic:4096 --quota 10GiB

        kvcairn tenants set research --ttl 7d
    """
    changes: dict[str, Any] = {}
    if strategy is not None:
        changes["strategy"] = parse_strategy(strategy)
    if codec is not None:
        changes["codec"] = codec
    if quota is not None:
        changes["quota_bytes"] = parse_quota(quota)
    if pin_quota is not None:
        changes["pin_quota_bytes"] = parse_quota(pin_quota)
    if encrypt is not None:
        changes["encrypt"] = encrypt
    if ttl is not None:
        changes["ttl_seconds"] = parse_ttl(ttl)
    with Asker(url, token) as service:
        method = "PATCH" if service.has(f"/v1/tenants/{name}") else "PUT"
        kept = service.send(method, f"/v1/tenants/{name}", Tenant, json=changes)
    show(kept, lambda: draw_tenants(kept), as_json=as_json)


@tenants_app.command("remove")
def remove_tenant(
    name: Name,
    url: UrlFlag = None,
    token: TokenFlag = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Delete a tenant with its tokens, layouts and records."""
    if not yes:
        typer.confirm(f"Delete tenant {name} with everything it stored?", abort=True)
    with Asker(url, token) as service:
        service.delete(f"/v1/tenants/{name}")
    typer.echo(f"tenant {name} is gone")


@tokens_app.command("make")
def make_token(
    name: Name,
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Make a token beside those there are, and show it this once."""
    with Asker(url, token) as service:
        made = service.send("POST", f"/v1/tenants/{name}/tokens", TokenCreated)
    show(made, lambda: typer.echo(made.token), as_json=as_json)


@tokens_app.command("list")
def list_tokens(
    name: Name,
    url: UrlFlag = None,
    token: TokenFlag = None,
    as_json: JsonFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """The ids of a tenant's tokens."""
    with Asker(url, token) as service:
        found = service.get(f"/v1/tenants/{name}/tokens", Tokens)
    rows = [(each.id, age(service.now_seconds - each.created)) for each in found.tokens]
    show(found, lambda: print_table(f"tokens of {name}", ("id", "age"), rows), as_json=as_json)


@tokens_app.command("revoke")
def revoke_token(
    name: Name,
    token_id: Annotated[str, typer.Argument(help="The token's id, as `list` shows it.", callback=parse_token_id)],
    url: UrlFlag = None,
    token: TokenFlag = None,
) -> None:
    """Refuse a token from now on."""
    with Asker(url, token) as service:
        service.delete(f"/v1/tenants/{name}/tokens/{token_id}")
    typer.echo(f"token {token_id} of {name} is revoked")
