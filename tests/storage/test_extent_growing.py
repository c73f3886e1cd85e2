"""A data file that grows while it is read is sound, however the looks at it and its growing meet."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcairn_storage.extent import Length
from watching import watching

GROWTHS = 5000


@pytest.fixture
def _restless() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    usual_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_seconds)


@pytest.mark.usefixtures("_restless")
def test_a_file_that_grows_under_a_look_at_it_is_not_taken_for_one_that_was_cut(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    data.write_bytes(b"x")
    length = Length(data)

    def grow() -> None:
        for size_bytes in range(2, GROWTHS):
            os.truncate(data, size_bytes)
            length.note()

    with watching(length.check) as seen, ThreadPoolExecutor(1) as pool:
        pool.submit(grow).result()
    assert length.fault is None
    assert seen["looks"] > 100
    length.close()
