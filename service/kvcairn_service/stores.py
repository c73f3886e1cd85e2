"""Opening the place where records and documents are kept."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvcairn_service.key_settings import ring_of
from kvcairn_service.settings import Settings
from kvcairn_storage.directory import default_capacity_bytes
from kvcairn_storage.keyring import KeyRing
from kvcairn_storage.lmdb import LmdbStore, map_bytes_for
from kvcairn_storage.store import DocumentStore, RecordStore


@dataclass(frozen=True, slots=True)
class Stores:
    """Where records and documents are kept. generation: the id of that place; capacity_bytes: how much it may hold.

    fault: what is wrong with that place that only a restart mends; None while all is well. ring: the keys that
    `records` encrypts with and reads by.
    """

    records: RecordStore
    documents: DocumentStore
    generation: str
    capacity_bytes: int
    fault: Callable[[], str | None] = lambda: None
    ring: KeyRing = field(default_factory=KeyRing)


def open_stores(settings: Settings) -> Stores:
    """The data directory's store; StorageError where it cannot be had."""
    capacity_bytes = settings.capacity or default_capacity_bytes(settings.data)
    ring = ring_of(settings)
    store = LmdbStore(settings.data, map_bytes=map_bytes_for(capacity_bytes))
    return Stores(encrypting(store, ring), store, store.identity.generation, capacity_bytes, lambda: store.fault, ring)


def encrypting(records: LmdbStore, ring: KeyRing) -> RecordStore:
    """The store as it is, where there is no key to encrypt with; what is encrypted in it all the same is never read."""
    if not ring.current:
        return records
    from kvcairn_storage.encrypted import EncryptedStore  # noqa: PLC0415 - needs the package cryptography

    return EncryptedStore(records, ring)
