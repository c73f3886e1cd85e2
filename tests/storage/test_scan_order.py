"""A service reads its index in the order in which records were stored, whatever their keys; lookups depend on it."""

from pathlib import Path

from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.testing import SECONDS, make_chain, make_put

EARLY = [bytes([first]) * 32 for first in (200, 3, 90)]
LATE = [bytes([first]) * 32 for first in (150, 1, 250)]


def test_prefixes_are_read_one_after_the_other_and_each_from_its_first_block(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes=1 << 24)
    early = [make_put(block, now=1.0) for block in make_chain(EARLY)]
    late = [make_put(block, now=2.0) for block in make_chain(LATE)]
    store.write([*late, *reversed(early)]).result(SECONDS)
    assert [key.key for key, _ in store.scan()] == [*EARLY, *LATE]
    store.close()
