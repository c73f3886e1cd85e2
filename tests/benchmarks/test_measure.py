"""The arithmetic of the report: what the table says is what was measured."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.measure import Figure, Timing, interleave, percentile, share
from benchmarks.page_cache import drop, resident_share


def test_rounds_are_interleaved_and_the_first_is_not_counted() -> None:
    order: list[str] = []
    timings = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 2, "b": 2}


def test_a_share_is_our_speed_in_that_of_the_other() -> None:
    ours, other = Timing((9.0, 2.0, 1.0)), Timing((1.0, 0.5, 3.0))
    figure = share("fetch / raw", ours, "raw", other, size_bytes=4_000_000_000, at_least=0.6)
    assert figure.value == 0.5
    assert not figure.holds
    assert figure.limit == "raw 4.00 GB/s (0.500..3.000 s)"
    assert figure.detail == "4,000.0 MB in 2.000 s (2.00 GB/s, 1.000..9.000 s)"


@pytest.mark.parametrize(("share_", "value"), [(0.99, 99), (0.5, 50), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_a_value_that_was_seen(share_: float, value: int) -> None:
    assert percentile(range(1, 101), share_) == value


def test_a_bound_holds_up_to_itself() -> None:
    assert Figure("a", 2.0, "×", "", at_least=2.0).holds
    assert not Figure("a", 2.1, "×", "", at_most=2.0).holds
    assert Figure("a", 2.1, "×", "").holds


def test_a_file_that_was_dropped_is_not_in_memory_until_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(8 << 20))
    assert resident_share(file) == 1.0
    by_others = ["/bin/dd", f"of={file}", "oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"]
    subprocess.run(by_others, check=True)
    if resident_share(file) > 0:
        pytest.skip("this file system keeps its pages in memory, whoever asks")
    file.read_bytes()
    assert resident_share(file) == 1.0
    drop(file)
    assert resident_share(file) == 0.0
    file.read_bytes()
    assert resident_share(file) == 1.0
