"""What each side installs: the service needs no torch, the client needs no server."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from deployment import ROOT

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{statement}
"""
GPU = {"torch", "transformers"}
SERVER = {"fastapi", "uvicorn", "uvloop", "httptools", "lmdb", "typer", "prometheus_client", "pydantic_settings"}


def imports(statement: str, absent: set[str]) -> subprocess.CompletedProcess[str]:
    """Run an import in a fresh interpreter in which the packages `absent` are not installed."""
    script = ABSENT.format(absent=absent, statement=statement)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["kvcairn_service.app", "kvcairn_service.cli"])
def test_the_service_is_imported_where_torch_is_not_installed(module: str) -> None:
    found = imports(f"import {module}", GPU)
    assert found.returncode == 0, found.stderr


def test_the_client_is_imported_where_no_server_is_installed() -> None:
    found = imports("from kvcairn_client.client import Client", SERVER | GPU)
    assert found.returncode == 0, found.stderr


def test_a_package_that_is_absent_is_really_absent() -> None:
    assert "ModuleNotFoundError" in imports("import fastapi", SERVER).stderr


def test_no_extra_asks_for_what_the_other_side_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: {Requirement(each).name.replace("-", "_") for each in wanted} for extra, wanted in extras.items()}
    assert not names["service"] & GPU
    assert not names["client"] & (GPU | SERVER)
    assert not names["transformers"] & SERVER
