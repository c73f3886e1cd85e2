"""Rows: record keys and entries as the bytes that the tables hold. Pure.

Key: one byte for the length of the tenant's id, the id, 32 bytes of layout, one of kind, 32 of key; both tables share
it, so that their order is the same. Entry: 68 bytes, little-endian.
"""

import struct

from kvcairn_protocol.layout import Kind
from kvcairn_storage.store import Entry, RecordKey

_ENTRY = struct.Struct("<Q16sQQQddI")
_PLACE = struct.Struct("<32sB32s")
MAX_TENANT_BYTES = 255
USES_LIMIT = 2**32 - 1


def pack_key(key: RecordKey) -> bytes:
    """The key's row; ValueError for a tenant id over 255 bytes, or a layout or key that is not 32 bytes."""
    tenant = key.tenant.encode()
    if len(tenant) > MAX_TENANT_BYTES or len(key.layout) != 32 or len(key.key) != 32:
        raise ValueError(f"a tenant id has at most {MAX_TENANT_BYTES} bytes, a layout and a key 32 each; found {key}")
    return bytes([len(tenant)]) + tenant + _PLACE.pack(key.layout, key.kind, key.key)


def unpack_key(row: bytes) -> RecordKey:
    """The inverse of `pack_key`."""
    end = 1 + row[0]
    layout, kind, key = _PLACE.unpack_from(row, end)
    return RecordKey(row[1:end].decode(), layout, Kind(kind), key)


def pack_entry(entry: Entry) -> bytes:
    """The entry's row; uses stop counting at 2^32 − 1."""
    return _ENTRY.pack(
        entry.position,
        entry.parent,
        entry.block_tokens,
        entry.raw_bytes,
        entry.stored_bytes,
        entry.created,
        entry.last_used,
        min(entry.uses, USES_LIMIT),
    )


def unpack_entry(row: bytes) -> Entry:
    """The inverse of `pack_entry`."""
    return Entry(*_ENTRY.unpack(row))


def when_stored(row: bytes) -> tuple[float, int]:
    """An entry's (created, position): the order in which a prefix was stored, block by block."""
    entry = unpack_entry(row)
    return entry.created, entry.position
