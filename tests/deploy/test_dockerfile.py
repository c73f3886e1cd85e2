"""The image: what it runs exists, what it exposes is what the service uses, and it never starts open to the world.

No engine runs here. tests/deploy/rehearse_image.py runs the Dockerfile's steps by hand; these tests run its command and
its health check as processes.
"""

import shlex
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pathspec import GitIgnoreSpec

from deployment import ROOT, Stage, dockerfile, run
from kvcairn_service.settings import Settings
from serving import running_service

ADMIN = "an-administrators-token"


@pytest.fixture
def image() -> Stage:
    return dockerfile()["service"]


def health(image: Stage, port: int) -> int:
    return run(*image.exec_form("HEALTHCHECK"), env={"KVCAIRN_PORT": str(port)}).returncode


def test_the_service_is_the_default_target() -> None:
    assert list(dockerfile())[-1] == "service"


def test_the_entrypoint_is_the_command_that_the_package_installs(image: Stage) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert image.exec_form("ENTRYPOINT") == ["kvcairn"]
    assert "kvcairn" in scripts
    assert image.exec_form("CMD") == ["serve"]


def test_every_setting_of_the_image_is_known_to_the_service(image: Stage) -> None:
    settings = {f"KVCAIRN_{name.upper()}" for name in Settings.model_fields}
    assert image.settings().keys() == {"KVCAIRN_DATA", "KVCAIRN_HOST", "KVCAIRN_PORT"}
    assert image.settings().keys() <= settings


def test_the_image_exposes_the_port_it_serves_and_keeps_its_data_in_the_volume(image: Stage) -> None:
    settings = image.settings()
    assert image.values("EXPOSE") == [settings["KVCAIRN_PORT"]] == [str(Settings.model_fields["port"].default)]
    assert image.values("VOLUME") == [settings["KVCAIRN_DATA"]]


@pytest.mark.parametrize("target", ["service", "client"])
def test_no_image_runs_as_root(target: str) -> None:
    user, _, group = dockerfile()[target].values("USER")[-1].partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_image_refuses_to_start_without_a_token(image: Stage, tmp_path: Path) -> None:
    settings = {**image.settings(), "KVCAIRN_DATA": str(tmp_path / "data"), "KVCAIRN_PORT": "0"}
    refused = run(*image.exec_form("ENTRYPOINT"), *image.exec_form("CMD"), env=settings)
    assert refused.returncode == 2
    assert "0.0.0.0" in refused.stderr  # noqa: S104 - the message's text
    assert "KVCAIRN_ADMIN_TOKEN" in refused.stderr


def test_the_health_check_passes_on_a_service_that_is_ready(image: Stage, tmp_path: Path) -> None:
    with running_service(tmp_path / "data", env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as service:
        assert health(image, urlsplit(service.url).port or 0) == 0


def test_the_health_check_fails_where_nothing_listens(image: Stage) -> None:
    assert health(image, 1) != 0


def test_what_the_builder_copies_exists_and_is_not_ignored() -> None:
    ignored = GitIgnoreSpec.from_lines((ROOT / ".dockerignore").read_text().splitlines())
    for stage in dockerfile().values():
        for value in stage.values("COPY"):
            sources = [each for each in shlex.split(value)[:-1] if not value.startswith("--from")]
            for source in sources:
                assert (ROOT / source).exists(), f"{source} is copied, but is not there"
                assert not ignored.match_file(source), f"{source} is copied, but .dockerignore leaves it out"


def test_data_and_tokens_never_reach_the_builder() -> None:
    ignored = GitIgnoreSpec.from_lines((ROOT / ".dockerignore").read_text().splitlines())
    for path in (".env", ".git/config", ".data/data.mdb", "deploy/admin-token", ".venv/bin/python", "tests/serving.py"):
        assert ignored.match_file(path), f"{path} reaches the builder"
