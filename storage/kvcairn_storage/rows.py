"""Rows: record keys and entries as the bytes that the tables hold. Pure.

Key: one byte for the length of the tenant's id, the id, 32 bytes of layout, one of kind, 32 of key; both tables share
it, so that their order is the same.

Entry: 68 bytes, little-endian; then one byte for the length of the writer's id, and the id in ASCII. A row that ends
after the 68 is one of data format 1, and its writer is not known (docs/decisions/lmdb.md).
"""

import struct
import sys

from kvcairn_protocol.layout import Kind
from kvcairn_storage.store import MAX_WRITER_BYTES, Entry, RecordKey

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
    """The entry's row; uses stop counting at 2^32 − 1. ValueError for a writer that is no short ASCII text."""
    writer = entry.writer.encode("ascii")
    if len(writer) > MAX_WRITER_BYTES:
        raise ValueError(f"a writer's id has at most {MAX_WRITER_BYTES} bytes; found {entry.writer!r}")
    fixed = _ENTRY.pack(
        entry.position,
        entry.parent,
        entry.block_tokens,
        entry.raw_bytes,
        entry.stored_bytes,
        entry.created,
        entry.last_used,
        min(entry.uses, USES_LIMIT),
    )
    return fixed + bytes([len(writer)]) + writer


def unpack_entry(row: bytes) -> Entry:
    """The inverse of `pack_entry`, for rows of format 1, too; ValueError or struct.error for what is no such row."""
    entry = Entry(*_ENTRY.unpack_from(row))
    if len(row) > _ENTRY.size:
        entry.writer = _unpack_writer(row[_ENTRY.size :])
    return entry


def _unpack_writer(tail: bytes) -> str:
    """The id behind its length; the same string each time, since an index holds one for every record."""
    if len(tail) != 1 + tail[0]:
        raise ValueError(f"the writer's id has {len(tail) - 1} bytes, and its length says {tail[0]}")
    return sys.intern(tail[1:].decode("ascii"))


def when_stored(row: bytes) -> tuple[float, int]:
    """An entry's (created, position): the order in which a prefix was stored, block by block."""
    position, *_, created, _, _ = _ENTRY.unpack_from(row)
    return created, position
