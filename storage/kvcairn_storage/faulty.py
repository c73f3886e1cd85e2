"""FaultyStore: a record store whose disk fails, hesitates or rots when told to."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from kvcairn_storage.samples import SECONDS
from kvcairn_storage.store import Entry, Put, RecordKey, RecordStore


class FaultyStore:
    """A RecordStore around another whose disk can be made to fail, to hesitate, or to forget bits. Thread-safe."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._waiting: list[tuple[Sequence[Put], Sequence[RecordKey], Future[None]]] | None = None

    def fail_writes(self, *errors: BaseException) -> None:
        """Let the next writes fail, one error each."""
        with self._lock:
            self._failures.extend(errors)

    def pause(self) -> None:
        """Keep writes waiting, in order, until `resume`."""
        with self._lock:
            self._waiting = self._waiting or []

    def resume(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
        for puts, deletes, done in waiting:
            self._pass_on(puts, deletes, done)

    def corrupt(self, key: RecordKey) -> None:
        """Flip the last bit of a stored record."""
        data = bytearray(self._records.get(key) or b"")
        data[-1] ^= 1
        entry = dict(self._records.scan())[key]
        self._records.write([Put(key, entry, [data])]).result(SECONDS)

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        done: Future[None] = Future()
        with self._lock:
            if self._waiting is not None:
                self._waiting.append((puts, deletes, done))
                return done
        self._pass_on(puts, deletes, done)
        return done

    def get(self, key: RecordKey) -> bytes | None:
        return self._records.get(key)

    def views(self, keys: Iterable[RecordKey]) -> "AbstractContextManager[list[memoryview | None]]":
        return self._records.views(keys)

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        return self._records.scan()

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        with self._lock:
            failure = self._failures.pop(0) if self._failures else None
        if failure is None:
            return self._records.note_use(uses)
        done: Future[None] = Future()
        done.set_exception(failure)
        return done

    def check_integrity(self) -> list[str]:
        return self._records.check_integrity()

    def close(self) -> None:
        self.resume()
        self._records.close()

    def _pass_on(self, puts: Sequence[Put], deletes: Sequence[RecordKey], done: "Future[None]") -> None:
        with self._lock:
            failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            done.set_exception(failure)
            return
        written = self._records.write(puts, deletes)
        written.add_done_callback(lambda _: _copy_outcome(written, done))


def _copy_outcome(source: "Future[None]", target: "Future[None]") -> None:
    error = source.exception()
    if error is None:
        target.set_result(None)
    else:
        target.set_exception(error)
