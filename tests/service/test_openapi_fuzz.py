"""schemathesis knows the service by its OpenAPI document alone: no answer is one that the document does not name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import ServiceProcess, running_service

ADMIN = "admin-secret-token"
CONFIG = Path(__file__).with_name("schemathesis.toml")
TAKE_LONGEST = 1800.0

pytestmark = pytest.mark.timeout(TAKE_LONGEST)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    data = tmp_path_factory.mktemp("openapi") / "data"
    with running_service(data, env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as running:
        yield running


def judge(service: ServiceProcess, where: Path, *args: str) -> None:
    """Run every check on every operation; the report and the service's log are the failure's message."""
    said = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{service.url}/openapi.json",
         "--header", f"Authorization: Bearer {ADMIN}", *args],
        cwd=where, capture_output=True, text=True, timeout=TAKE_LONGEST, check=False,
    )  # fmt: skip
    assert said.returncode == 0, f"{said.stdout}\n{said.stderr}\n{service.log()[-4000:]}"
    assert "No issues found" in said.stdout, said.stdout
    assert service.returncode is None


def test_some_requests_for_each_operation_are_answered_as_the_document_says(service, tmp_path):
    judge(service, tmp_path, "--phases", "fuzzing", "--max-examples", "2", "--seed", "1")


@pytest.mark.torture
def test_many_requests_for_each_operation_are_answered_as_the_document_says(service, tmp_path):
    judge(service, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "50")
