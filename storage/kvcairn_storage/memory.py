"""MemoryStore: records and documents in this process, for tests and wherever nothing need outlive it."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from kvcairn_storage.errors import StoreClosed
from kvcairn_storage.integrity import Opened, as_stored, record_faults
from kvcairn_storage.store import Entry, Put, RecordKey


class MemoryStore:
    """A RecordStore and a DocumentStore on two dictionaries; thread-safe; every write commits before it returns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[RecordKey, tuple[Entry, bytes]] = {}
        self._documents: dict[str, dict[str, bytes]] = {}
        self._closed = False

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        joined = [(put.key, put.entry.copied(), b"".join(put.data)) for put in puts]
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                done.set_exception(StoreClosed("the memory store is closed"))
                return done
            for key in deletes:
                self._records.pop(key, None)
            for key, entry, data in joined:
                self._records[key] = entry, data
        done.set_result(None)
        return done

    def get(self, key: RecordKey) -> bytes | None:
        with self._lock:
            self._check_open()
            found = self._records.get(key)
        return found[1] if found else None

    @contextmanager
    def views(self, keys: Iterable[RecordKey]) -> "Iterator[list[memoryview | None]]":
        with self._lock:
            self._check_open()
            found = [self._records.get(key) for key in keys]
        yield [memoryview(each[1]) if each else None for each in found]

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        with self._lock:
            self._check_open()
            return iter([(key, entry.copied()) for key, (entry, _) in self._records.items()])

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        done: Future[None] = Future()
        with self._lock:
            self._check_open()
            for key, (last_used, count) in uses.items():
                if key in self._records:
                    self._records[key][0].last_used, self._records[key][0].uses = last_used, count
        done.set_result(None)
        return done

    def check_integrity(self, *, opened: Opened = as_stored) -> list[str]:
        with self._lock:
            self._check_open()
            records = list(self._records.items())
        return [fault for key, (entry, data) in records for fault in record_faults(key, entry, data, opened=opened)]

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def get_document(self, table: str, name: str) -> bytes | None:
        with self._lock:
            self._check_open()
            return self._documents.get(table, {}).get(name)

    def put_document(self, table: str, name: str, document: bytes) -> None:
        with self._lock:
            self._check_open()
            self._documents.setdefault(table, {})[name] = bytes(document)

    def delete_document(self, table: str, name: str) -> bool:
        with self._lock:
            self._check_open()
            return self._documents.get(table, {}).pop(name, None) is not None

    def documents(self, table: str) -> dict[str, bytes]:
        with self._lock:
            self._check_open()
            return dict(self._documents.get(table, {}))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the memory store is closed")
