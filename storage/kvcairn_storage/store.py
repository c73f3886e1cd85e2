"""RecordStore: the small interface that every place for records implements. A miss is None.

It knows keys and bytes, and commits batches; what a record means, what goes when space is short and who may see it is
decided above it (prefixes.py, space.py), so that LMDB, memory or a bucket can be one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import HEADER_BYTES

Bytes = bytes | bytearray | memoryview
UNKNOWN_WRITER = "unknown"
"""Of records that were stored before writers were remembered (data format 1)."""

MAX_WRITER_BYTES = 32


PLAIN = b""
KEY_ID_BYTES = 8
CIPHER_BYTES = 52
"""What encryption adds to a value: magic, key id, salt, nonce and tag (cipher.py)."""


class RecordKey(NamedTuple):
    """Where one record lives. tenant: the tenant's unique id, never re-used; layout, key: 32 bytes each."""

    tenant: str
    layout: bytes
    kind: Kind
    key: bytes


@dataclass(slots=True)
class Entry:
    """What is known of a record without reading it; kept by the store beside the record.

    parent: the first 16 bytes of the parent's key, zeros for none. block_tokens: 0 for unchained layouts.
    raw_bytes, stored_bytes: the payload's lengths. created, last_used: seconds since the epoch. uses: fetched or
    touched since it was stored. writer: the id of the token that stored it, printable ASCII, at most MAX_WRITER_BYTES;
    one string for all records of a writer, so that it costs a record no more than a pointer. key_id: of the key that
    its value is encrypted with (encrypted.py), KEY_ID_BYTES; empty for a value that is stored as it travelled.
    """

    position: int
    parent: bytes
    block_tokens: int
    raw_bytes: int
    stored_bytes: int
    created: float
    last_used: float
    uses: int = 0
    writer: str = UNKNOWN_WRITER
    key_id: bytes = PLAIN

    @property
    def value_bytes(self) -> int:
        """How long the value is that a store keeps: header, payload, and what encryption adds."""
        return HEADER_BYTES + self.stored_bytes + (CIPHER_BYTES if self.key_id else 0)

    def copied(self) -> "Entry":
        """A copy; dataclasses.replace takes six times as long, and a fetch copies thousands."""
        return Entry(
            self.position,
            self.parent,
            self.block_tokens,
            self.raw_bytes,
            self.stored_bytes,
            self.created,
            self.last_used,
            self.uses,
            self.writer,
            self.key_id,
        )


class Put(NamedTuple):
    """One record to write: `data` is the header and payload, as they travel; parts are joined in order."""

    key: RecordKey
    entry: Entry
    data: Sequence[Bytes]


class RecordStore(Protocol):
    """Records by key. Every method may be called from any thread; none changes what a caller passed in."""

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        """Apply one batch: deletes first, then puts (which replace). All or nothing.

        The future resolves once the batch is committed to disk; it fails with StoreFull, StoreUnreadable or
        StoreClosed, and then nothing of the batch was kept. Deleting what is not there is no error. The caller leaves
        `data` unchanged until then.
        """
        ...

    def get(self, key: RecordKey) -> bytes | None:
        """A copy of the record, header and all; None if it is not there."""
        ...

    def views(self, keys: Iterable[RecordKey]) -> "AbstractContextManager[list[memoryview | None]]":
        """The records, None for those that are not there, as views that are good inside the with block alone.

        No copy is made. What a view refers to may be another record's bytes a moment after the block has ended, and
        no page that is freed can be used again before: keep the block short, and never wait inside it.
        """
        ...

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        """Every record's key and entry, in no order, as of one moment."""
        ...

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        """Remember (last_used, uses) of records; those that are gone meanwhile are skipped."""
        ...

    def check_integrity(self) -> list[str]:
        """What is wrong between records and entries, one sentence each; empty if nothing is. Reads every record."""
        ...

    def close(self) -> None:
        """Commit what waits, sync, release the directory; then all raise StoreClosed. Closing twice is fine."""
        ...


class DocumentStore(Protocol):
    """Small JSON documents by table and name: tenants, tokens, layouts. Committed before a call returns."""

    def get_document(self, table: str, name: str) -> bytes | None: ...

    def put_document(self, table: str, name: str, document: bytes) -> None: ...

    def delete_document(self, table: str, name: str) -> bool: ...

    def documents(self, table: str) -> dict[str, bytes]: ...
