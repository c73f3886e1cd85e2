"""Every line of the page of promises names a test that is there, and what runs it does run it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?!what holds|---)(.+?) \| `([^`]+)` \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "promises.md").read_text())
TESTS = [(name, runs) for _, name, runs in ROWS if "::" in name]
TARGETS = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def named_tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function by its name, and every method as Class::name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}::{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef))


def marks(name: str) -> tuple[bool, bool]:
    """Whether all of a test's cases are marked torture, and whether some are; AssertionError where there is no test."""
    file, _, wanted = name.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = dict(named_tests(tree))
    assert wanted in functions, f"{file} has no {wanted}"
    of_module = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    everywhere = any(text.startswith("pytestmark") and "mark.torture" in text for text in of_module)
    decorators = [ast.unparse(each) for each in functions[wanted].decorator_list]
    whole = everywhere or "pytest.mark.torture" in decorators
    return whole, whole or any("mark.torture" in text for text in decorators)


@pytest.mark.parametrize(("name", "runs"), TESTS)
def test_every_test_that_a_promise_names_is_there_and_run_by_what_is_named(name: str, runs: str) -> None:
    whole, some = marks(name)
    assert ("`make torture`" in runs) == some
    assert ("`make test`" in runs) == (not whole)


def test_every_promise_has_its_lines_and_every_command_is_a_target() -> None:
    text = (ROOT / "docs" / "promises.md").read_text()
    parts = text.split("\n## ")[1:]
    assert len(parts) == 5
    assert all(len(ROW.findall(part)) >= 5 for part in parts)
    assert len(ROWS) == sum(line.startswith("| ") for line in text.splitlines()) - len(parts)
    assert {target for *_, runs in ROWS for target in re.findall(r"`make ([a-z]+)", runs)} <= set(TARGETS)


def test_every_long_test_keeps_a_promise() -> None:
    named = {name.partition("::")[0] for name, _ in TESTS}
    files = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.torture" in path.read_text()}
    assert {str(path.relative_to(ROOT)) for path in files - {Path(__file__)}} <= named
