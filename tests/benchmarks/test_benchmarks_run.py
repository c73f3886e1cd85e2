"""The benchmarks run once, tiny, without looking at the clock, so that they cannot rot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "figures"), [("lab", 2), ("flash", 4), ("restore", 1)])
def test_each_benchmark_runs_and_writes_its_figures(name: str, figures: int, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", name, "--tiny", "--rounds", "1", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert len(report["figures"]) == figures
    assert all(figure["value"] > 0 for figure in report["figures"] if figure["unit"] != "MB")
    assert report["machine"]["python"]


def test_an_unknown_benchmark_is_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "flahs", "--output", str(tmp_path / "bench.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "flahs" in done.stderr
    assert "flash" in done.stderr
