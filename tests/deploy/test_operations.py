"""docs/operations.md: every command in it is one that the program understands, every setting one that there is."""

import re
import shlex
from typing import Any

import pytest
import typer

from deployment import ROOT
from kvcairn_service.cli import app
from kvcairn_service.settings import Settings

PAGE = (ROOT / "docs/operations.md").read_text()
BLOCK = [match[1] for match in re.finditer(r"^ {4}(?:\S*/)?kvcairn (.+)$", PAGE, flags=re.MULTILINE)]
INLINE = [match[1] for match in re.finditer(r"`kvcairn ([^`]+)`", PAGE)]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and its arguments; a word that is no command fails."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    return command, words


def test_the_page_shows_the_commands_that_operators_need() -> None:
    shown = {resolve(shlex.split(line, comments=True))[0].name for line in BLOCK}
    assert {"serve", "stats", "set", "make", "revoke", "list", "check", "backup"} <= shown


@pytest.mark.parametrize("line", BLOCK)
def test_every_command_of_a_block_is_understood(line: str) -> None:
    command, arguments = resolve(shlex.split(line, comments=True))
    command.make_context(command.name, arguments)


@pytest.mark.parametrize("line", INLINE)
def test_every_command_in_the_prose_exists(line: str) -> None:
    command, arguments = resolve(line.split())
    options = {name for parameter in command.params for name in parameter.opts}
    assert {each for each in arguments if each.startswith("--")} <= options | {"--help"}


def test_every_setting_is_in_the_table_and_every_row_is_a_setting() -> None:
    table = PAGE.split("| setting |")[1].split("\n\n")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == Settings.model_fields.keys()


def test_the_defaults_that_the_page_gives_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, flags=re.MULTILINE))
    assert {"stall_seconds", "drain_seconds"} <= rows.keys()
    assert {name: Settings.model_fields[name].default for name in rows} == {name: float(rows[name]) for name in rows}
