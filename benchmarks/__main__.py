"""`make bench`: run the benchmarks, print a table, write JSON. Exits 1 if a figure misses its target."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import flash, lab, lookup, miss, restore
from benchmarks.machine import describe
from benchmarks.measure import Figure

BENCHMARKS: dict[str, Callable[..., list[Figure]]] = {
    "lab": lab.run,
    "flash": flash.run,
    "restore": restore.run,
    "lookup": lookup.run,
    "miss": miss.run,
}
"""By name, in the order they run; each is called as run(rounds=…, tiny=…) and cleans up what it made."""


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
    console, figures = Console(width=None if sys.stdout.isatty() else 160), []
    for name in only or BENCHMARKS:
        start = time.monotonic()
        with console.status(f"{name} …"):
            figures += BENCHMARKS[name](rounds=rounds, tiny=tiny)
        console.print(f"{name}: {time.monotonic() - start:.0f} s")
    console.print(_table(figures))
    _write(output, figures)
    console.print(f"JSON: {output}")
    if not tiny and not all(figure.holds for figure in figures):
        raise typer.Exit(1)


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
