"""Lookups, misses, churn and codecs: each benchmark once, tiny; of codecs, also what it tries them on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cache_content import contents
from benchmarks.peer_servers import is_installed

ROOT = Path(__file__).parents[2]
WITH_REDIS = is_installed("redis-server")


@pytest.mark.parametrize(
    ("name", "figures"), [("lookup", 2 + WITH_REDIS), ("miss", 2), ("churn", 2), ("codecs", 6)]
)  # fmt: skip
def test_each_benchmark_runs_and_writes_its_figures(name: str, figures: int, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", name, "--tiny", "--rounds", "1", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert len(report["figures"]) == figures
    assert all(figure["value"] > 0 for figure in report["figures"])


def test_packed_caches_have_the_rows_of_the_deployed_format_and_are_no_noise() -> None:
    (found,) = (content for content in contents(tokens=512) if content.name == "packed FP8 cache")
    (payload,) = found.payloads
    assert [segment.stream.row_shape for segment in found.segments[:2]] == [(584,), (132,)]
    assert len(payload) == sum(segment.size_bytes for segment in found.segments)
    spare = [payload[at + 583] for at in range(0, found.segments[0].size_bytes, 584)]
    assert set(spare) == {0}
    assert len(set(payload[: found.segments[0].size_bytes])) > 200
