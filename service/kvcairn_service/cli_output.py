"""How commands speak: tables for people, JSON for machines, one line on stderr for what went wrong."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from pydantic import BaseModel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDEST = 10_000
"""More columns than any table has, so that rich neither folds nor crops one."""


def fail(message: str, *, status: int = 1) -> NoReturn:
    """End the command with one line on stderr."""
    typer.echo(f"kvcairn: {message}", err=True)
    raise typer.Exit(status)


def print_json(document: BaseModel | dict[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(
        document.model_dump_json(indent=2) if isinstance(document, BaseModel) else json.dumps(document, indent=2)
    )


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table on stdout, a line each row: what does not fit a terminal it wraps itself, and no id is ever cut.

    Numbers, which start with a digit, stand right.
    """
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(row[index][:1].isdigit() or row[index] in ("-", "none") for row in rows)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=WIDEST).print(table)


def size(size_bytes: int | None) -> str:
    """A size for people: 1.9 MiB; none for None."""
    if size_bytes is None:
        return "none"
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def age(seconds: float | None) -> str:
    """A duration for people: 3.5 h; - for None."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def share(part: int, whole: int) -> str:
    """A percentage; - of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
