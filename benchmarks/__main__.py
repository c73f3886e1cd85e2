"""`make bench`: run the benchmarks, print a table, write JSON. Exits 1 if a figure misses its target."""

import importlib
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.measure import Figure
from benchmarks.peer_servers import MissingProgram, require

BENCHMARKS = (
    "lab",
    "flash",
    "attach",
    "cold",
    "store",
    "latency",
    "clients",
    "overload",
    "peers",
    "lookup",
    "start",
    "miss",
    "churn",
    "codecs",
    "restore",
    "mac",
    "encryption",
    "trace",
)
"""In the order they run. Each is a module here, loaded when its turn comes, for some need much that others do not; its
run(rounds=…, tiny=…) returns figures and leaves nothing behind."""

NEEDS = {"peers": ("redis-server", "memcached"), "lookup": ("redis-server",)}
"""Programs that a benchmark compares to; --tiny leaves out what is not installed."""


def main(
    only: Annotated[
        list[str] | None, typer.Argument(help=f"Which to run: {', '.join(BENCHMARKS)}. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Counted rounds; one more warms up.")] = 7,
    output: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("build/bench.json"),
    tiny: Annotated[bool, typer.Option("--tiny", help="Smallest sizes, to see that everything still runs.")] = False,
) -> None:
    """Measure kvcairn beside the limits of this machine, in one run."""
    unknown = set(only or ()) - set(BENCHMARKS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: known are {', '.join(BENCHMARKS)}")
    if not tiny:
        _require_peers(only or BENCHMARKS)
    console = Console(width=None if sys.stdout.isatty() else 160)
    figures: list[Figure] = []
    for name in only or BENCHMARKS:
        start = time.monotonic()
        with console.status(f"{name} …"):
            figures += importlib.import_module(f"benchmarks.{name}").run(rounds=rounds, tiny=tiny)
        console.print(f"{name}: {time.monotonic() - start:.0f} s")
    console.print(_table(figures))
    _write(output, figures)
    console.print(f"JSON: {output}")
    if not tiny and not all(figure.holds for figure in figures):
        raise typer.Exit(1)


def _require_peers(names: Iterable[str]) -> None:
    """Before anything runs: what is missing must not end a run of minutes in its middle."""
    try:
        require(*dict.fromkeys(program for name in names for program in NEEDS.get(name, ())))
    except MissingProgram as error:
        raise typer.BadParameter(str(error)) from None


def _table(figures: list[Figure]) -> Table:
    table = Table("work", "value", "limit or peer", "target", "holds", "detail")
    for figure in figures:
        verdict = "yes" if figure.holds else "[bold red]no[/]"
        value = f"{figure.value:.3g} {figure.unit}"
        table.add_row(figure.work, value, figure.limit, figure.target, verdict, figure.detail)
    return table


def _write(output: Path, figures: list[Figure]) -> None:
    lines = [asdict(figure) | {"holds": figure.holds} for figure in figures]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": describe(), "figures": lines, "command": sys.argv}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
