"""What the files of deploy/ say, parsed, and their shell scripts run outside of any container."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[1]


class Stage:
    """One stage of the Dockerfile: its instructions, in order."""

    def __init__(self) -> None:
        self.instructions: list[tuple[str, str]] = []

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.instructions if name == instruction]

    def exec_form(self, instruction: str) -> list[str]:
        """The JSON list of an ENTRYPOINT, CMD or HEALTHCHECK; the shell form has none and fails here."""
        text = self.values(instruction)[-1]
        arguments: list[str] = json.loads(text[text.index("[") :])
        return arguments

    def environment(self) -> dict[str, str]:
        pairs = (pair.partition("=") for value in self.values("ENV") for pair in shlex.split(value))
        return {name: value for name, _, value in pairs}

    def settings(self) -> dict[str, str]:
        """The part of the environment that is ours."""
        return {name: value for name, value in self.environment().items() if name.startswith("KVCAIRN_")}


@cache
def dockerfile() -> dict[str, Stage]:
    """The Dockerfile's stages by name, in order. The parser may write to its file, so it gets a copy."""
    stages: dict[str, Stage] = {}
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "Dockerfile"
        copy.write_text((ROOT / "deploy/Dockerfile").read_text())
        structure = DockerfileParser(path=str(copy)).structure
    for each in structure:
        if each["instruction"] == "FROM":
            stage = stages[each["value"].split(" AS ")[1]] = Stage()
        elif stages and each["instruction"] != "COMMENT":
            stage.instructions.append((each["instruction"], each["value"]))
    return stages


@cache
def compose() -> Any:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@cache
def manifests() -> list[Any]:
    """The documents of the Kubernetes sidecar, in order."""
    return list(yaml.safe_load_all((ROOT / "deploy/kubernetes/sidecar.yaml").read_text()))


def pod() -> Any:
    """The spec of the StatefulSet's pods."""
    return next(each for each in manifests() if each["kind"] == "StatefulSet")["spec"]["template"]["spec"]


def run(*command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of an image where its WORKDIR is: `kvcairn` and `python` are those of this environment."""
    with tempfile.TemporaryDirectory() as directory:
        for name, start in (("kvcairn", "-m kvcairn_service"), ("python", "")):
            script = Path(directory) / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
            script.chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVCAIRN_")}
        environment = {**inherited, **env, "PATH": f"{directory}:{os.environ['PATH']}"}
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )


def moved(text: str, places: Mapping[str, Path]) -> str:
    """The text with an image's paths replaced by those of a test."""
    for place, path in places.items():
        text = text.replace(place, str(path))
    return text
