"""The picture of docs/performance.md comes from measured points, and the same points make the same bytes."""

import subprocess
import sys
from pathlib import Path

from benchmarks.plot import Point, draw, extrapolate

ROOT = Path(__file__).parents[2]
MEASURED = [Point(512, 2_000_000, 0.004, is_measured=True), Point(2_048, 8_000_000, 0.008, is_measured=True)]


def test_what_was_not_measured_is_marked_and_goes_on_at_the_last_rate() -> None:
    points = extrapolate(MEASURED)
    assert points[:2] == MEASURED
    assert [point.tokens for point in points[2:]] == [8_192, 32_768, 131_072, 524_288, 1_048_576]
    assert not any(point.is_measured for point in points[2:])
    assert points[-1].seconds == 512 * 0.008


def test_the_same_points_make_the_same_small_picture_with_its_words_as_text(tmp_path: Path) -> None:
    pictures = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for picture in pictures:
        draw(extrapolate(MEASURED), picture)
    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second
    assert len(first) < 150_000
    for words in (
        b"prefill at 20,000 tokens/s (assumed)",
        b"restore, measured",
        b"restore, extrapolated",
        b"1,048,576",
    ):
        assert words in first


def test_the_command_measures_draws_and_prints_the_table(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    flags = ("--output", str(picture), "--rounds", "1", "--measured-blocks", "4")
    command = [sys.executable, "-m", "benchmarks.plot", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture.stat().st_size > 0
    restores = [line.split("|")[3] for line in done.stdout.splitlines()[2:]]
    assert ["extrapolated" in restore for restore in restores] == [False, False, True, True, True, True, True]
