"""Opening the place where records and documents are kept."""

from dataclasses import dataclass

from kvcairn_service.settings import Settings
from kvcairn_storage.directory import default_capacity_bytes
from kvcairn_storage.lmdb import LmdbStore, map_bytes_for
from kvcairn_storage.store import DocumentStore, RecordStore


@dataclass(frozen=True, slots=True)
class Stores:
    """Where records and documents are kept. generation: the id of that place; capacity_bytes: how much it may hold."""

    records: RecordStore
    documents: DocumentStore
    generation: str
    capacity_bytes: int


def open_stores(settings: Settings) -> Stores:
    """The data directory's store; StorageError where it cannot be had."""
    capacity_bytes = settings.capacity or default_capacity_bytes(settings.data)
    store = LmdbStore(settings.data, map_bytes=map_bytes_for(capacity_bytes))
    return Stores(store, store, store.identity.generation, capacity_bytes)
