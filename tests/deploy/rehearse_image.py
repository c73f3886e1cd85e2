"""The Dockerfile's service image, built and run by hand in a temporary directory instead of by an engine.

Not part of `make test`, since it installs the package anew from the index (about a minute):
    .venv/bin/python -m pytest tests/deploy/rehearse_image.py
REHEARSE_PYTHON=/path/to/python3.12 takes the interpreter of the image instead of this environment's.
It copies what the COPY lines name, runs the RUN lines of the build stage, then the image's entrypoint with the image's
environment; only the paths /src, /opt/kvcairn and /data become those of the test. Not rehearsed: the base image, the
user and group (the RUN line of the service stage), the volume, and the client's target with torch.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployment import ROOT, dockerfile, moved

pytestmark = pytest.mark.timeout(900)
ADMIN = "an-administrators-token"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the image's directories lie in this rehearsal."""
    base = tmp_path_factory.mktemp("image")
    return {"/src": base / "src", "/opt/kvcairn": base / "opt", "/data": base / "data"}


@pytest.fixture(scope="module")
def installed(places: dict[str, Path]) -> Path:
    """The build stage, run: the directory of the installed commands."""
    places["/src"].mkdir()
    for instruction, value in dockerfile()["build"].instructions:
        if instruction == "COPY":
            copy(shlex.split(value), places["/src"])
        elif instruction == "RUN":
            command = re.sub(r"--mount=\S+\s*", "", moved(value, places))
            subprocess.run(
                ["/bin/sh", "-euc", command], cwd=places["/src"], env=with_python(places), check=True, timeout=600
            )
    return places["/opt/kvcairn"] / "bin"


def copy(arguments: list[str], target: Path) -> None:
    *sources, destination = arguments
    for source in sources:
        if (ROOT / source).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / source, target / destination, ignore=ignore)
        else:
            shutil.copy(ROOT / source, target / destination)


def with_python(places: dict[str, Path]) -> dict[str, str]:
    """The environment of a base image: one interpreter named python, nothing of this checkout."""
    first = places["/src"].parent / "base"
    first.mkdir(exist_ok=True)
    if not (first / "python").exists():
        (first / "python").symlink_to(os.environ.get("REHEARSE_PYTHON", sys._base_executable))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KVCAIRN_", "PYTHON"))}
    return {**inherited, "PATH": f"{first}:{os.environ['PATH']}"}


@contextmanager
def container(installed: Path, places: dict[str, Path], **settings: str) -> Iterator[subprocess.Popen[str]]:
    """The image's entrypoint and command, with its environment; PORT 0 keeps parallel runs apart."""
    image = dockerfile()["service"]
    inside = {name: moved(value, places) for name, value in image.settings().items()}
    environment = {**with_python(places), **inside, "KVCAIRN_HOST": "127.0.0.1", "KVCAIRN_PORT": "0", **settings}
    command = [installed / image.exec_form("ENTRYPOINT")[0], *image.exec_form("CMD")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def port_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
            return found[1]
    raise AssertionError("the service ended without saying where it listens")


def test_the_image_carries_the_command_and_neither_torch_nor_a_compiler(installed: Path) -> None:
    listed = subprocess.run([installed / "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True)
    names = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert {"kvcairn", "fastapi", "lmdb", "uvicorn"} <= names
    assert not {"torch", "transformers", "hatchling", "pytest"} & names
    subprocess.run([installed / "kvcairn", "version"], check=True, timeout=60)


def test_the_image_serves_passes_its_health_check_and_stops_cleanly(installed: Path, places: dict[str, Path]) -> None:
    check = dockerfile()["service"].exec_form("HEALTHCHECK")
    with container(installed, places, KVCAIRN_ADMIN_TOKEN=ADMIN) as process:
        environment = {**with_python(places), "KVCAIRN_PORT": port_of(process)}
        for _ in range(30):
            if subprocess.run(check, env=environment, check=False, timeout=10).returncode == 0:
                break
            time.sleep(1)
        else:
            raise AssertionError("the health check never passed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=45) == 0


def test_the_image_refuses_all_interfaces_without_a_token(installed: Path, places: dict[str, Path]) -> None:
    host = dockerfile()["service"].settings()["KVCAIRN_HOST"]
    with container(installed, places, KVCAIRN_HOST=host) as process:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "KVCAIRN_ADMIN_TOKEN" in said
