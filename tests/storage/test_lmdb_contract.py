"""LmdbStore keeps the contract of every record store and document store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.testing import DocumentStoreContract, RecordStoreContract

MAP_BYTES = 64 << 20


class TestLmdbRecords(RecordStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[LmdbStore]:
        store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
        yield store
        store.close()


class TestLmdbDocuments(DocumentStoreContract):
    @pytest.fixture
    def documents(self, tmp_path: Path) -> Iterator[LmdbStore]:
        store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
        yield store
        store.close()
