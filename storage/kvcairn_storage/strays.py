"""Rows that cannot be true in a file whose trees are sound: a bit of a key or an entry was flipped. Found at start.

A record and its entry lie under the same key in two tables. Whatever is in one alone, or whose entry says what no
entry can say, is a stray: it is deleted where it lies, since a search for its key may not lead there.
"""

import logging
import math
import struct
from functools import lru_cache
from typing import Any

from kvcairn_storage.documents import unseal
from kvcairn_storage.rows import pack_key, unpack_entry, unpack_key

KEY_BYTES = 32
MAX_STORED_BYTES = 2**40
_NEVER_SECONDS = 1e11
_LOG = logging.getLogger(__name__)

Transaction = Any
"""An LMDB transaction: this module imports no lmdb."""

Table = Any


def has_strays(txn: Transaction, records: Table, entries: Table, documents: Table) -> bool:
    """Whether there are any; reads every key, every entry and every document, and no record."""
    with txn.cursor(db=records) as keys, txn.cursor(db=entries) as rows, txn.cursor(db=documents) as kept:
        paired = zip(keys.iternext(keys=True, values=False), rows, strict=False)
        as_many = txn.stat(db=records)["entries"] == txn.stat(db=entries)["entries"]
        return not (
            as_many
            and all(key == row and is_credible(row, entry) for key, (row, entry) in paired)
            and all(unseal(row, value) is not None for row, value in kept)
        )


def drop_strays(txn: Transaction, records: Table, entries: Table, documents: Table) -> None:
    """Delete them, in a transaction that writes."""
    with txn.cursor(db=records) as keys, txn.cursor(db=entries) as rows:
        sound = {row for row, entry in rows if is_credible(row, entry)}
        sound &= set(keys.iternext(keys=True, values=False))
    dropped = {
        "records": _drop(txn, records, sound),
        "entries": _drop(txn, entries, sound),
        "documents": _drop_documents(txn, documents),
    }
    _LOG.error("damaged rows were dropped at the start: %s", ", ".join(f"{n} {what}" for what, n in dropped.items()))


def is_credible(row: bytes, packed: bytes) -> bool:
    """Whether this may be a record's key and its entry."""
    try:
        entry = unpack_entry(packed)
        is_key = _is_place(row[:-KEY_BYTES])
    except (ValueError, IndexError, struct.error):
        return False
    moments = entry.created, entry.last_used
    sizes = entry.raw_bytes, entry.stored_bytes, entry.position, entry.block_tokens
    return (
        is_key
        and all(math.isfinite(moment) and 0 <= moment < _NEVER_SECONDS for moment in moments)
        and all(size < MAX_STORED_BYTES for size in sizes)
    )


@lru_cache(64)  # rows are in order: thousands share a place
def _is_place(row: bytes) -> bool:
    """Whether a row without its last 32 bytes names a tenant, a layout and a kind."""
    key = unpack_key(row + bytes(KEY_BYTES))
    return pack_key(key)[:-KEY_BYTES] == row


def _drop(txn: Transaction, table: Table, sound: set[bytes]) -> int:
    """Delete by place, not by key, all but the first row of each sound key."""
    dropped, left = 0, set(sound)
    with txn.cursor(db=table) as cursor:
        more = cursor.first()
        while more:
            key = bytes(cursor.key())
            if key in left:
                left.discard(key)
                more = cursor.next()
            else:
                more = cursor.delete() and bool(cursor.key())
                dropped += 1
    return dropped


def _drop_documents(txn: Transaction, documents: Table) -> int:
    with txn.cursor(db=documents) as cursor:
        damaged = [row for row, value in cursor if unseal(row, value) is None]
    return sum(bool(txn.delete(row, db=documents)) for row in damaged)
