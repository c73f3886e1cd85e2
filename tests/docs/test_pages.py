"""The pages point at what is there, and README's code runs as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import running_service

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:protocol|storage|service|client|tests|benchmarks|examples|deploy|docs)/[\w./-]+)`")
IN_CODE = re.compile(r"\bdocs/[\w./-]+\.md\b")
SOURCES = [path for room in ("protocol", "storage", "service", "client", "benchmarks", "examples", "deploy", "tests")
           for path in (ROOT / room).rglob("*") if path.suffix in {".py", ".yml", ".yaml"}]  # fmt: skip


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


def test_every_page_that_code_names_is_there() -> None:
    named = {(page_id(source), name) for source in SOURCES for name in IN_CODE.findall(source.read_text())}
    assert len(named) > 10
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).exists()] == []


def test_the_code_of_the_readme_restores_on_its_second_run(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    with running_service(tmp_path / "data") as service:
        script = code.replace("http://127.0.0.1:7420", service.url)
        assert script != code
        runs = [_run(script) for _ in range(2)]
    assert "hit_tokens=0," in runs[0]
    assert "hit_tokens=3584," in runs[1]


def _run(script: str) -> str:
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
