"""Whether stored bytes are the record that their key and entry say, and what is wrong if not. Pure."""

import struct

from kvcairn_protocol.errors import RecordError
from kvcairn_protocol.record import HEADER_BYTES, Header, check_asked, check_payload, parse_header
from kvcairn_storage.rows import unpack_entry, unpack_key
from kvcairn_storage.store import Bytes, Entry, RecordKey


def is_sound(key: RecordKey, data: Bytes) -> bool:
    """Whether the bytes are a whole record of this key whose checksum holds."""
    try:
        _check(key, data)
    except RecordError:
        return False
    return True


def record_faults(key: RecordKey, entry: Entry, data: Bytes) -> list[str]:
    """What is wrong with a stored record, given its entry; empty if nothing is."""
    name = describe(key)
    try:
        header = _check(key, data)
    except RecordError as error:
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


def row_faults(row: bytes, record: Bytes | None, entry: Bytes | None) -> list[str]:
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
    return record_faults(key, known, record)


def describe(key: RecordKey) -> str:
    """The record's name in messages."""
    return f"{key.kind.label} {key.key.hex()} of layout {key.layout.hex()[:12]}, tenant {key.tenant}"


def _check(key: RecordKey, data: Bytes) -> Header:
    header = parse_header(data, max_raw_bytes=2**53)
    check_asked(header, kind=key.kind, key=key.key, fingerprint=key.layout)
    view = memoryview(data)
    check_payload(header, view[:HEADER_BYTES], view[HEADER_BYTES:])
    return header
