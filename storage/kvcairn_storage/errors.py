"""What a store can answer instead of doing what was asked.

StorageError
├── StoreFull          no room on the disk or in the map; worth a retry once space is free
├── StoreUnreadable    the disk or the file failed under us; worth a retry after repair
├── StoreClosed        the store is closed or closing; no retry
├── StoreInUse         another process serves this directory; no retry while it does
├── UnknownFormat      another version's data directory, or none; no retry
└── CipherError        a value cannot be decrypted; no retry with the same keys
    └── KeyLost        its key is not among those that were given
"""

from kvcairn_protocol.errors import KvcairnError


class StorageError(KvcairnError):
    """The root of everything that a store raises on purpose."""


class StoreFull(StorageError):
    """The disk or the map has no room for this write; nothing of it was kept."""


class StoreUnreadable(StorageError):
    """Reading or writing failed for another reason than space."""


class StoreClosed(StorageError):
    """The store is closed."""


class StoreInUse(StorageError):
    """Another process holds the directory; the message names its pid."""


class UnknownFormat(StorageError):
    """The directory has a data format that this version does not read, or is no data directory at all."""


class CipherError(StorageError):
    """A stored value does not decrypt: it was changed, or moved to another key's place."""


class KeyLost(CipherError):
    """A value is encrypted with a key that is not here; it may be good with the right keys."""
