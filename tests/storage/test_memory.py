"""MemoryStore keeps the contract of every record store and document store."""

from collections.abc import Iterator

import pytest

from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.testing import DocumentStoreContract, RecordStoreContract


class TestMemoryRecords(RecordStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[MemoryStore]:
        store = MemoryStore()
        yield store
        store.close()


class TestMemoryDocuments(DocumentStoreContract):
    @pytest.fixture
    def documents(self) -> Iterator[MemoryStore]:
        store = MemoryStore()
        yield store
        store.close()
