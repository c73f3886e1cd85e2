"""The command `kvcairn`: run the service, ask a running one, and look after a data directory."""

from typing import Annotated

import typer

from kvcairn_service.cli_admin import layouts_command, stats_command, tenants_app
from kvcairn_service.cli_data import backup_command, check_command
from kvcairn_service.cli_pins import pins_app
from kvcairn_service.cli_purge import purge_command
from kvcairn_service.cli_serve import serve_command
from kvcairn_service.routes.service import version

app = typer.Typer(
    name="kvcairn",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="A prefix-cache store for hybrid-attention language models: prefill once, restore everywhere, byte for byte.",
    epilog="Start with [bold]kvcairn serve --data ~/.local/share/kvcairn[/bold], then [bold]kvcairn stats[/bold].",
)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - the value of a command-line flag
    if is_asked:
        typer.echo(version())
        raise typer.Exit


VersionFlag = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
]


@app.callback()
def _callback(
    _: VersionFlag = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Settings come from flags, then KVCAIRN_* variables, then the file that --config names."""


@app.command("version")
def version_command() -> None:
    """Print the version."""
    typer.echo(version())


app.command("serve")(serve_command)
app.command("stats")(stats_command)
app.command("layouts")(layouts_command)
app.command("purge")(purge_command)
app.command("check")(check_command)
app.command("backup")(backup_command)
app.add_typer(tenants_app, name="tenants")
app.add_typer(pins_app, name="pins")
