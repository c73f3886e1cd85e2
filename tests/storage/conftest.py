"""A prefix store on a memory store whose disk can be made to fail, and a clock that stands still."""

from collections.abc import Iterator

import pytest

from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import FaultyStore, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def store(disk: FaultyStore, clock: ManualClock) -> Iterator[PrefixStore]:
    """Room for a hundred records of one page each."""
    store = PrefixStore(disk, capacity_bytes=100 * 4096, clock=clock)
    yield store
    assert store.check_integrity() == []
    store.close()
