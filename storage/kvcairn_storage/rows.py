"""Rows: record keys and entries as the bytes that the tables hold. Pure.

Key: one byte for the length of the tenant's id, the id, 32 bytes of layout, one of kind, 32 of key; both tables share
it, so that their order is the same.

Entry: 68 bytes, little-endian; then one byte for the length of the writer's id, and the id in ASCII; then, if the value
is encrypted, the 8 bytes of its key's id. A row that ends after the 68 is one of data format 1, and its writer is not
known (docs/decisions/lmdb.md).
"""

import struct
import sys

from kvcairn_protocol.layout import Kind
from kvcairn_storage.store import KEY_ID_BYTES, MAX_WRITER_BYTES, PLAIN, Entry, RecordKey

_ENTRY = struct.Struct("<Q16sQQQddI")
_PLACE = struct.Struct("<32sB32s")
MAX_TENANT_BYTES = 255
USES_LIMIT = 2**32 - 1
_KEY_IDS: dict[bytes, bytes] = {}


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
    return fixed + bytes([len(writer)]) + writer + entry.key_id


def unpack_entry(row: bytes) -> Entry:
    """The inverse of `pack_entry`, for rows of format 1, too; ValueError or struct.error for what is no such row."""
    entry = Entry(*_ENTRY.unpack_from(row))
    if len(row) > _ENTRY.size:
        entry.writer, entry.key_id = _unpack_tail(row[_ENTRY.size :])
    return entry


def _unpack_tail(tail: bytes) -> tuple[str, bytes]:
    """The writer's id behind its length, and the key's; the same objects each time: an index holds one a record."""
    writer, key_id = tail[1 : 1 + tail[0]], tail[1 + tail[0] :]
    if len(writer) != tail[0] or len(key_id) not in (0, KEY_ID_BYTES):
        raise ValueError(f"{len(tail) - 1} bytes cannot be a writer's id of {tail[0]} bytes, alone or with a key's id")
    return sys.intern(writer.decode("ascii")), _KEY_IDS.setdefault(key_id, key_id) if key_id else PLAIN


def when_stored(row: bytes) -> tuple[float, int]:
    """An entry's (created, position): the order in which a prefix was stored, block by block."""
    position, *_, created, _, _ = _ENTRY.unpack_from(row)
    return created, position
