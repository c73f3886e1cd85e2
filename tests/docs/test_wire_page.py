"""The wire page is true: its bytes are the golden ones, and its programs run against a real service."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import ServiceProcess, running_service

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "protocol" / "golden"
PAGE = (ROOT / "docs" / "wire.md").read_text()
RUN_SECONDS = 60
BASH = shutil.which("bash") or "/bin/bash"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(tmp_path_factory.mktemp("data"), "--port", "0") as running:
        yield running


def test_the_hex_of_the_page_is_the_golden_records() -> None:
    shown = [bytes.fromhex(text) for text in blocks("hex")]
    assert shown == [(GOLDEN / f"{name}.record").read_bytes() for name in ("history", "state", "window", "missing")]


def test_the_small_layout_and_its_keys_are_the_golden_ones() -> None:
    assert blocks("json")[-1].strip() == (GOLDEN / "small_layout.json").read_text()
    keys = (GOLDEN / "keys.json").read_text()
    shown = re.findall(r"^ {4}\S+ +([0-9a-f]{64})", PAGE, re.MULTILINE)
    assert len(shown) == 4
    assert all(f'"{key}"' in keys for key in shown)


def test_the_whole_client_stores_and_then_restores(service: ServiceProcess, tmp_path: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(blocks("python")[0])
    environment = {"KVCAIRN_URL": service.url, "PATH": os.environ["PATH"]}
    said = [
        subprocess.run(
            [sys.executable, program], env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said[0] == 'restored 0 blocks of 5 and 0 bytes\n{"stored":6,"present":0,"rejected":[]}\n'
    assert said[1] == 'restored 5 blocks of 5 and 76 bytes\n{"stored":0,"present":1,"rejected":[]}\n'


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("xxd")), reason="needs curl and xxd")
def test_the_curl_examples_run_as_they_stand(service: ServiceProcess) -> None:
    script = blocks("sh")[0].replace("http://127.0.0.1:7420", service.url)
    done = subprocess.run(
        [BASH, "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"history_blocks":1' in done.stdout


def test_the_limits_of_the_page_are_those_that_a_service_tells(service: ServiceProcess) -> None:
    with service.http() as http:
        limits = http.get("/v1/service").json()["limits"]
    for name, value in limits.items():
        row = re.search(rf"^\| `{name}` \| (.*?) \|", PAGE, re.MULTILINE)
        assert row, f"{name} is not on the page"
        assert f"{value:,}" in row[1]


def test_every_path_of_the_service_is_on_the_page(service: ServiceProcess) -> None:
    with service.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    for path in paths:
        shown = path.replace("token_id", "id").replace("/v1/tenants/{name}/tokens/{id}", "…/tokens/{id}")
        assert f"`{shown}`" in PAGE or f"`{path}`" in PAGE, path
