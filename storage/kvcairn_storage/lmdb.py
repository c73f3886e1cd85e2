"""LmdbStore: records and documents in one LMDB environment.

Four tables: records (header and payload as they travelled), entries (what lookups and accounting need, so that they
never touch a value), documents, and meta. Always synced, never a writable map: after a power loss the tree is whole
and every acknowledged record is there. Why so, and what was measured: docs/decisions/lmdb.md.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import lmdb

from kvcairn_storage.allocator import keep_freed_memory
from kvcairn_storage.directory import (
    DATA_NAME,
    READERS_NAME,
    SUSPECT_NAME,
    DataDirectory,
    is_full,
    new_data_file,
    read_identity,
)
from kvcairn_storage.documents import document_row, seal, unseal
from kvcairn_storage.environment import DAMAGE, Environment, translated
from kvcairn_storage.errors import StorageError, StoreClosed, StoreFull, StoreUnreadable
from kvcairn_storage.extent import extend
from kvcairn_storage.integrity import Opened, as_stored, row_faults
from kvcairn_storage.rows import pack_entry, pack_key, unpack_entry, unpack_key, when_stored
from kvcairn_storage.salvage import set_damaged_aside
from kvcairn_storage.slot import PAGE_BYTES
from kvcairn_storage.store import Bytes, Entry, Put, RecordKey
from kvcairn_storage.strays import drop_strays, has_strays
from kvcairn_storage.writer import GroupWriter

RECORDS_PER_READ = 16
"""What is deleted while a transaction reads cannot be re-used before it ends; so the check of a whole store reads in
short ones. Only `scan`, which must show one moment, and `backup` read for as long as they take."""

SLACK_BYTES = 256 << 20
Work = Callable[["lmdb.Transaction[bytes]"], object]
_Row = tuple[bytes, bytes, Sequence[Bytes]]
_Use = tuple[bytes, tuple[float, int]]
_LOG = logging.getLogger(__name__)


def map_bytes_for(capacity_bytes: int) -> int:
    """The map that a capacity needs: a fifth stays free, because large values need runs of neighbouring pages.

    The slack holds a whole group that is being written beside what it replaces. Only what is used takes disk space.
    """
    return (capacity_bytes * 5 // 4 + SLACK_BYTES) // 4096 * 4096


class LmdbReader(Environment):
    """What can be read, also beside a running service and from another process. Thread-safe; ends at a fork."""

    def __init__(self, path: Path) -> None:
        """Open an existing directory read-only; UnknownFormat if it is not ours, StoreUnreadable if it is broken."""
        self.identity = read_identity(path)
        self._open(path, readonly=True, map_size=0, create=False)

    def get(self, key: RecordKey) -> bytes | None:
        with self._reading() as txn:
            return txn.get(pack_key(key), db=self._records)

    @contextmanager
    def views(self, keys: Iterable[RecordKey]) -> "Iterator[list[memoryview | None]]":
        with self._viewing() as txn:
            yield [txn.get(pack_key(key), db=self._records) for key in keys]

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        """See RecordStore; in the order in which they were stored, and unpacked in that order.

        The blocks of a prefix then lie side by side in memory, as they do in a service that stored them itself; hashes
        scatter them, and a long lookup among a million would wait for memory most of the time.
        """
        with self._reading() as txn:
            found = list(txn.cursor(db=self._entries))
        found.sort(key=lambda row: when_stored(row[1]))
        return ((unpack_key(row), unpack_entry(value)) for row, value in found)

    def count(self) -> int:
        """How many records there are."""
        with self._reading() as txn:
            return int(txn.stat(db=self._records)["entries"])

    def check_integrity(
        self, progress: Callable[[int], None] | None = None, *, opened: Opened = as_stored
    ) -> list[str]:
        """See RecordStore. progress: called with the number of records read since the last call. opened: of a value."""
        faults: list[str] = []
        start: bytes | None = b""
        while start is not None:
            try:
                with self._viewing() as txn:
                    found, start, read = self._check_some(txn, start, opened)
            except StoreUnreadable as error:
                return [*faults, f"records from {start!r} on cannot be read: {error}"]
            faults += found
            if progress is not None:
                progress(read)
        return faults

    def _check_some(
        self, txn: "lmdb.Transaction[memoryview[int]]", start: bytes, opened: Opened
    ) -> tuple[list[str], bytes | None, int]:
        """Compare some rows of both tables, which are in the same order; returns faults, where to go on, how many."""
        records, entries = txn.cursor(db=self._records), txn.cursor(db=self._entries)
        records.set_range(start)
        entries.set_range(start)
        faults: list[str] = []
        for read in range(RECORDS_PER_READ):
            rows = [bytes(cursor.key()) for cursor in (records, entries)]
            row = min((row for row in rows if row), default=None)
            if row is None:
                return faults, None, read
            here = [cursor if own == row else None for cursor, own in zip((records, entries), rows, strict=True)]
            record, entry = (cursor.value() if cursor else None for cursor in here)
            faults += row_faults(row, record, entry, opened=opened)
            start = row + b"\0"
            for cursor in here:
                if cursor:
                    cursor.next()
        return faults, start, RECORDS_PER_READ

    def get_document(self, table: str, name: str) -> bytes | None:
        row = document_row(table, name)
        with self._reading() as txn:
            value = txn.get(row, db=self._documents)
        return None if value is None else unseal(row, value)

    def documents(self, table: str) -> dict[str, bytes]:
        """Those that are as they were written; a damaged one is not there."""
        prefix = document_row(table, "")
        found: dict[str, bytes] = {}
        with self._reading() as txn, txn.cursor(db=self._documents) as cursor:
            cursor.set_range(prefix)
            for row, value in cursor:
                if not row.startswith(prefix):
                    break
                document = unseal(row, value)
                if document is not None:
                    found[row[len(prefix) :].decode()] = document
        return found

    def backup(self, target: Path) -> None:
        """Copy the directory, as of one moment, into `target`, which must be missing or empty; a new generation.

        The copy reads for as long as it takes, and what is deleted meanwhile cannot be re-used before it ends. One that
        was killed is no data directory, and refused as such.
        """
        failing = translated(f"{self.path} cannot be copied to {target}")
        with self._map_in_use(), failing, new_data_file(target) as descriptor:
            self._env.copyfd(descriptor, compact=True)


class LmdbStore(LmdbReader):
    """A RecordStore and a DocumentStore on disk; thread-safe, one process at a time."""

    def __init__(self, path: Path, *, map_bytes: int) -> None:
        """Open or make a data directory.

        map_bytes: see `map_bytes_for`; may differ from the last time, and never cuts what is stored. Raises StoreInUse,
        UnknownFormat or StoreUnreadable.
        """
        keep_freed_memory()
        self._fault: str | None = None
        self._readers_file = -1
        self._directory = DataDirectory(path)
        try:
            with translated(f"{path} cannot be opened"):
                documents = set_damaged_aside(self._directory)
            self._open(path, readonly=False, map_size=map_bytes, create=True)
            self._put_in_order(documents)
        except BaseException:
            self._directory.close()
            raise
        self.identity = self._directory.identity
        self._writer: GroupWriter[lmdb.Transaction[bytes]] = GroupWriter(self._commit, make_room=self._make_room)

    def _put_in_order(self, documents: Mapping[bytes, bytes]) -> None:
        """Keep what was saved of a damaged file, drop rows that cannot be true, and let go of readers that died."""
        with translated(f"{self.path} cannot be written"):
            self._env.reader_check()
            self._readers_file = _fill(self.path / READERS_NAME)
        if documents:
            self._commit([lambda txn: txn.cursor(db=self._documents).putmulti(documents.items())])
        tables = self._records, self._entries, self._documents
        with self._reading() as txn:
            is_wanting = has_strays(txn, *tables)
        if is_wanting:
            self._commit([lambda txn: drop_strays(txn, *tables)])

    @property
    def fault(self) -> str | None:
        """What only a restart mends: a file that was cut, or trees that make no sense to LMDB; None if all is well."""
        return self._length.fault or self._fault

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        size_bytes = sum(len(part) for put in puts for part in put.data)
        rows = [(pack_key(put.key), pack_entry(put.entry), put.data) for put in puts]
        gone = [pack_key(key) for key in deletes]
        return self._submit(partial(self._apply, rows, gone), size_bytes=size_bytes)

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        with self._map_in_use():
            self._env.reader_check()
        rows = [(pack_key(key), use) for key, use in uses.items()]
        return self._submit(partial(self._apply_uses, rows), size_bytes=len(rows) * PAGE_BYTES)

    def put_document(self, table: str, name: str, document: bytes) -> None:
        row = document_row(table, name)
        value = seal(row, document)
        self._submit(lambda txn: txn.put(row, value, db=self._documents), size_bytes=len(value)).result()

    def delete_document(self, table: str, name: str) -> bool:
        row = document_row(table, name)
        return bool(self._submit(lambda txn: txn.delete(row, db=self._documents), size_bytes=0).result())

    def close(self) -> None:
        self._check_process()
        self._writer.close()
        super().close()
        if self._readers_file >= 0:
            os.close(self._readers_file)
            self._readers_file = -1
        self._directory.close()

    def _submit(self, work: Work, *, size_bytes: int) -> "Future[None]":
        self._check_process()
        return self._writer.submit(work, size_bytes=size_bytes)

    def _commit(self, works: Sequence[Work]) -> list[object]:
        self._length.check()
        try:
            with translated(f"{self.path} cannot be written"), self._env.begin(write=True) as txn:
                results = [work(txn) for work in works]
        except (StoreUnreadable, StoreClosed) as error:
            self._mend(error)
            if is_full(self.path):  # LMDB calls a write that was cut short an input/output error
                raise StoreFull(f"the file system of {self.path} is full: {error}") from error
            raise
        extend(self._env, self.path / DATA_NAME)
        self._length.note()
        return results

    def _mend(self, error: StorageError) -> None:
        """After a failed commit: open anew what LMDB refuses from then on, and note what no opening helps."""
        try:
            if self.is_dead():
                self._reopen()
                _LOG.error("%s; the file was opened anew", error)
            elif isinstance(error.__cause__, DAMAGE):
                self._note_fault(error)
        except StorageError as again:
            self._note_fault(again)

    def _note_fault(self, error: StorageError) -> None:
        if self._fault is None:
            _LOG.critical("nothing can be stored any more, and only a restart helps: %s", error)
            self._fault = str(error)
            with suppress(OSError):
                (self.path / SUSPECT_NAME).touch()

    def _make_room(self) -> None:
        """Free readers that died, and commit once: LMDB re-uses pages only two transactions after they were freed."""
        with self._map_in_use():
            self._env.reader_check()
        self._commit([lambda txn: txn.put(b"tick", os.urandom(8), db=self._meta)])

    def _apply(self, puts: Sequence[_Row], deletes: Sequence[bytes], txn: "lmdb.Transaction[bytes]") -> None:
        for key in deletes:
            txn.delete(key, db=self._records)
            txn.delete(key, db=self._entries)
        for key, entry, data in puts:
            txn.put(key, data[0] if len(data) == 1 else b"".join(data), db=self._records)
            txn.put(key, entry, db=self._entries)

    def _apply_uses(self, uses: Sequence[_Use], txn: "lmdb.Transaction[bytes]") -> None:
        for row, (last_used, count) in uses:
            found = txn.get(row, db=self._entries)
            if found is not None:
                entry = unpack_entry(found)
                entry.last_used, entry.uses = last_used, count
                txn.put(row, pack_entry(entry), db=self._entries)


def _fill(path: Path) -> int:
    """Take the disk space of a whole file: LMDB maps its table of readers, and a page that cannot be had kills.

    Returns the descriptor, which must stay open for as long as LMDB's own: closing any of a file drops all locks that
    this process has on it, and the next process to open it would then begin the table of readers anew.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    os.posix_fallocate(descriptor, 0, path.stat().st_size)
    return descriptor
