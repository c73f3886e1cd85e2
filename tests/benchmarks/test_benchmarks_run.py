"""The benchmarks run once, tiny, without looking at the clock, so that they cannot rot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


FIGURES = {
    "lab": 2,
    "flash": 4,
    "attach": 1,
    "cold": 1,
    "store": 2,
    "latency": 4,
    "clients": 1,
    "overload": 4,
    "start": 1,
    "restore": 1,
    "mac": 4,
    "encryption": 2,
    "trace": 2,
}
"""How many figures each benchmark gives."""

FILES_FIGURES, REDIS_FIGURES, MEMCACHED_FIGURES = 3, 4, 4


def run_benchmarks(*arguments: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    """`python -m benchmarks`; path: where it finds other programs, instead of everywhere."""
    env = os.environ if path is None else os.environ | {"PATH": path}
    command = [sys.executable, "-m", "benchmarks", "--rounds", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def figures_of(output: Path) -> list[dict[str, Any]]:
    report = json.loads(output.read_text())
    assert report["machine"]["python"]
    found: list[dict[str, Any]] = report["figures"]
    assert all(figure["value"] > 0 for figure in found if figure["unit"] != "MB")
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_each_benchmark_runs_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = run_benchmarks(name, "--tiny", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(figures_of(output)) == FIGURES[name]


def test_peers_that_are_not_installed_are_left_out_of_a_tiny_run_and_said_so(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = run_benchmarks("peers", "--tiny", "--output", str(output), path=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(figures_of(output)) == FILES_FIGURES
    assert "redis-server is not installed" in done.stderr
    assert "memcached is not installed" in done.stderr


def test_a_whole_run_without_its_peers_says_which_packages_to_install_and_runs_nothing(tmp_path: Path) -> None:
    done = run_benchmarks("lab", "peers", "--output", str(tmp_path / "bench.json"), path=str(tmp_path))
    assert done.returncode == 2
    assert "lab:" not in done.stdout
    assert "apt-get install redis-server memcached" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.skipif(not shutil.which("redis-server") or not shutil.which("memcached"), reason="peers not installed")
def test_installed_peers_are_measured_beside_ours(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = run_benchmarks("peers", "--tiny", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(figures_of(output)) == FILES_FIGURES + REDIS_FIGURES + MEMCACHED_FIGURES


def test_an_unknown_benchmark_is_refused_by_name(tmp_path: Path) -> None:
    done = run_benchmarks("flahs", "--output", str(tmp_path / "bench.json"))
    assert done.returncode == 2
    assert "flahs" in done.stderr
    assert "flash" in done.stderr
