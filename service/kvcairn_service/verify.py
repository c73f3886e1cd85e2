"""Verification down to the decoded bytes, of one record that is already stored. Reads the disk: for worker threads."""

import logging

from kvcairn_protocol.errors import KvcairnError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.record import HEADER_BYTES, check_asked, check_decodes, verify_record
from kvcairn_storage.errors import StorageError, StoreUnreadable
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import RecordKey

log = logging.getLogger("kvcairn.verify")


def is_verified(store: PrefixStore, key: RecordKey, layout: Layout) -> bool:
    """Whether the record is there, and good in every bit; one that is not is quarantined."""
    try:
        record = store.get(key)
    except StoreUnreadable:
        record = None
    if record is not None and is_good(record, key, layout):
        return True
    quarantine_if_bad(store, key, layout)
    return False


def quarantine_if_bad(store: PrefixStore, key: RecordKey, layout: Layout) -> bool:
    """Read the record again from disk; if it is bad, it is no longer served. Returns whether it was.

    That holds where the disk cannot delete it, too: it may be full, or what holds the record is what is damaged.
    """
    try:
        return store.quarantine(key, verify=lambda record: is_good(record, key, layout))
    except StorageError as error:
        if store.exists([key]) == [True]:
            raise
        log.warning("the %s record %s is damaged, and stays on the disk: %s", key.kind.label, key.key.hex(), error)
        return True


def is_good(record: bytes, key: RecordKey, layout: Layout) -> bool:
    """Whether this is the record of that key, right for its layout, its checksum holds, and its payload decodes."""
    try:
        header = verify_record(record, layout, max_raw_bytes=layout.payload_bytes(key.kind))
        check_asked(header, kind=key.kind, key=key.key, fingerprint=key.layout)
        check_decodes(header, layout, memoryview(record)[HEADER_BYTES:])
    except KvcairnError:
        return False
    return True
