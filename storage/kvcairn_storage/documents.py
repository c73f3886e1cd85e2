"""Documents as rows: table and name for a key, and each with a checksum of its own, as records have. Pure.

A row's value is one byte, the XXH3-128 of its key and the document, and the document. Directories of format 1 hold bare
JSON, which begins with another byte; such a one is taken as it is.
"""

import xxhash

_SEALED = b"\x01"
_HEAD_BYTES = 1 + 16


def document_row(table: str, name: str) -> bytes:
    """The key of a document."""
    return f"{table}\0{name}".encode()


def seal(row: bytes, document: bytes) -> bytes:
    """The value to be kept under that key."""
    return _SEALED + _digest(row, document) + document


def unseal(row: bytes, value: bytes) -> bytes | None:
    """The document; None where the value, or its key, is not as it was written."""
    if value[:1] == b"{":
        return value
    document = value[_HEAD_BYTES:]
    if value[:_HEAD_BYTES] != _SEALED + _digest(row, document):
        return None
    return document


def _digest(row: bytes, document: bytes) -> bytes:
    return xxhash.xxh3_128(len(row).to_bytes(4, "little") + row + document).digest()
