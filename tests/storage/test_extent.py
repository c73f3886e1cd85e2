"""A data file that ends before its tree does: refused where pages are missing, sound where they never were."""

import os
from pathlib import Path
from typing import Any

import pytest

from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.lmdb import LmdbReader, LmdbStore
from kvcairn_storage.testing import SECONDS, make_put, make_record

PAGE = 4096
MAP_BYTES = 64 << 20
KEYS = [bytes([index + 1]) * 32 for index in range(20)]


def filled(directory: Path) -> os.stat_result:
    """A store of 20 records of 100 kB; what the file is then."""
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    store.write([make_put(make_record(key=key, payload=bytes(100_000))) for key in KEYS]).result(SECONDS)
    store.close()
    return (directory / "data.mdb").stat()


@pytest.mark.parametrize("left", [0.3, 0.9, 0.999])
def test_a_data_file_that_was_cut_off_is_refused_by_readers_and_kills_nobody(tmp_path: Path, left: float) -> None:
    whole_bytes = filled(tmp_path).st_size
    os.truncate(tmp_path / "data.mdb", int(whole_bytes * left))
    with pytest.raises(StoreUnreadable, match=r"is damaged: .* a backup"):
        LmdbReader(tmp_path)


def test_a_data_file_that_is_cut_in_use_is_read_and_written_no_more_and_kills_nobody(tmp_path: Path) -> None:
    whole_bytes = filled(tmp_path).st_size
    store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    os.truncate(tmp_path / "data.mdb", 4 * PAGE)
    keys = [make_record(key=key, payload=bytes(100_000)) for key in KEYS]
    with pytest.raises(StoreUnreadable, match=r"was cut while it was in use"):
        store.get(make_put(keys[0]).key)
    os.truncate(tmp_path / "data.mdb", whole_bytes)  # zeros now: what was cut stays so
    with pytest.raises(StoreUnreadable, match=r"was cut"):
        store.write([make_put(keys[0])]).result(SECONDS)
    store.close()


def missing_bytes(environment: Any, directory: Path) -> int:
    tree_bytes = (environment.info()["last_pgno"] + 1) * PAGE
    return int(tree_bytes - (directory / "data.mdb").stat().st_size)


def test_a_file_that_lacks_only_pages_that_were_never_written_is_sound_and_made_longer(tmp_path: Path) -> None:
    """As a writer leaves it that is killed right after a commit: LMDB does not write what a transaction gave back."""
    lmdb = pytest.importorskip("lmdb")
    filled(tmp_path)
    environment = lmdb.open(os.fspath(tmp_path), map_size=MAP_BYTES, max_dbs=8)
    with environment.begin(write=True) as txn:
        txn.put(b"tick", bytes(1 << 20), db=environment.open_db(b"meta", txn=txn))
        txn.delete(b"tick", db=environment.open_db(b"meta", txn=txn))
    assert missing_bytes(environment, tmp_path) > 0
    environment.close()
    reader = LmdbReader(tmp_path)
    assert (reader.count(), reader.check_integrity()) == (20, [])
    reader.close()
    store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    store.put_document("tenants", "a", b"{}")
    store.close()
    environment = lmdb.open(os.fspath(tmp_path), readonly=True)
    assert missing_bytes(environment, tmp_path) <= 0
    environment.close()
