"""Whether stored bytes are the record that their key and entry say, and what is wrong if not. Pure."""

import struct
from collections.abc import Callable

from kvcairn_protocol.errors import RecordError
from kvcairn_protocol.record import HEADER_BYTES, Header, check_asked, check_payload, parse_header
from kvcairn_storage.errors import CipherError
from kvcairn_storage.rows import unpack_entry, unpack_key
from kvcairn_storage.store import Bytes, Entry, RecordKey

Opened = Callable[[RecordKey, Bytes], Bytes]
"""From a stored value to the record in it; a CipherError where it cannot be had."""


def as_stored(key: RecordKey, data: Bytes) -> Bytes:  # noqa: ARG001 - an `Opened`
    """A value that is the record itself."""
    return data


def is_sound(key: RecordKey, entry: Entry, data: Bytes) -> bool:
    """Whether the bytes are a whole record of this key, as its entry says, whose checksum holds."""
    return not record_faults(key, entry, data)


def record_faults(key: RecordKey, entry: Entry, data: Bytes, *, opened: Opened = as_stored) -> list[str]:
    """What is wrong with a stored record, given its entry; empty if nothing is."""
    name = describe(key)
    try:
        header = _check(key, opened(key, data))
    except (RecordError, CipherError) as error:
        return [f"{name}: {error}"]
    pairs = (
        ("position", header.position, entry.position),
        ("parent", header.parent.hex(), entry.parent.hex()),
        ("raw_bytes", header.raw_bytes, entry.raw_bytes),
        ("stored_bytes", header.stored_bytes, entry.stored_bytes),
    )
    return [
        f"{name}: {field} is {kept} in the entry, {found} in the record"
        for field, found, kept in pairs
        if found != kept
    ]


def row_faults(row: bytes, record: Bytes | None, entry: Bytes | None, *, opened: Opened = as_stored) -> list[str]:
    """What is wrong with one row of the two tables, None where it is in the other alone."""
    try:
        key = unpack_key(row)
        known = unpack_entry(bytes(entry)) if entry is not None else None
    except (ValueError, IndexError, struct.error) as error:
        return [f"row {row.hex()} holds no record key, or its entry no entry: {error}"]
    if record is None:
        return [f"{describe(key)}: there is an entry, but no record"]
    if known is None:
        return [f"{describe(key)}: there is a record, but no entry"]
    return record_faults(key, known, record, opened=opened)


def describe(key: RecordKey) -> str:
    """The record's name in messages."""
    return f"{key.kind.label} {key.key.hex()} of layout {key.layout.hex()[:12]}, tenant {key.tenant}"


def _check(key: RecordKey, data: Bytes) -> Header:
    header = parse_header(data, max_raw_bytes=2**53)
    check_asked(header, kind=key.kind, key=key.key, fingerprint=key.layout)
    view = memoryview(data)
    check_payload(header, view[:HEADER_BYTES], view[HEADER_BYTES:])
    return header
