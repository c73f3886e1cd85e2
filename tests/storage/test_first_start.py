"""A first start that was killed: whoever reads the directory is told what it is, and the next start makes it whole."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvcairn_storage.directory import read_identity
from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.lmdb import LmdbReader, LmdbStore

MAP_BYTES = 16 << 20


def no_file(data: Path) -> None:
    """Killed after the identity was written."""


def no_tables(data: Path) -> None:
    """Killed after LMDB made its file."""
    lmdb.open(str(data), map_size=MAP_BYTES, max_dbs=8).close()


def one_table(data: Path) -> None:
    """Killed between two tables."""
    with lmdb.open(str(data), map_size=MAP_BYTES, max_dbs=8) as environment:
        environment.open_db(b"records")


@pytest.mark.parametrize("leave", [no_file, no_tables, one_table])
def test_a_directory_whose_first_start_was_killed_says_so_and_the_next_start_makes_it_whole(
    tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    LmdbStore(tmp_path, map_bytes=MAP_BYTES).close()
    generation = read_identity(tmp_path).generation
    for name in ("data.mdb", "lock.mdb"):
        (tmp_path / name).unlink()
    leave(tmp_path)
    with pytest.raises(StoreUnreadable, match="first start was cut short; start a service on it"):
        LmdbReader(tmp_path)
    with closing(LmdbStore(tmp_path, map_bytes=MAP_BYTES)) as store:
        assert (store.count(), store.identity.generation) == (0, generation)
