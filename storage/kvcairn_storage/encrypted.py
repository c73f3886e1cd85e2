"""EncryptedStore: values of those records whose entry names a key are encrypted on their way to another store.

Keys, entries and lengths stay as they are; so do all other values. What does not decrypt is answered by a record of the
right length whose checksum cannot hold: whoever reads it finds it bad, as any damaged one, and it is quarantined.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from kvcairn_protocol.record import HEADER_BYTES, Header
from kvcairn_storage.cipher import decrypt, encrypt, is_encrypted, name_of
from kvcairn_storage.errors import CipherError, StoreClosed
from kvcairn_storage.integrity import Opened, as_stored
from kvcairn_storage.keyring import KeyRing
from kvcairn_storage.recent import Recent
from kvcairn_storage.store import CIPHER_BYTES, Bytes, Entry, Put, RecordKey, RecordStore


class Checkable(RecordStore, Protocol):
    """A store that can be told how to open the values that it checks."""

    def check_integrity(self, *, opened: Opened = as_stored) -> list[str]: ...


class EncryptedStore:
    """A RecordStore around another. Thread-safe.

    Encrypting takes a thread of its own, through which all writes go in the order in which they came: the caller may be
    an event loop. Until a write is committed, it holds a copy of what is encrypted; `views` holds copies of what is
    decrypted until its block ends, and some of them for a moment longer (recent.py).
    """

    def __init__(self, records: Checkable, ring: KeyRing) -> None:
        """Closes `records` with itself."""
        self._records, self._ring, self._recent = records, ring, Recent()
        self._thread = ThreadPoolExecutor(1, "kvcairn-encrypt")

    def write(self, puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> "Future[None]":
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        # What the caller may change once this returns is the entry alone.
        given = [put._replace(entry=put.entry.copied()) for put in puts]
        try:
            self._thread.submit(self._write, given, list(deletes), done)
        except RuntimeError:
            done.set_exception(StoreClosed("the store is closed"))
        return done

    def get(self, key: RecordKey) -> bytes | None:
        value = self._records.get(key)
        return None if value is None else bytes(self._opened(key, value, open_value))

    @contextmanager
    def views(self, keys: Iterable[RecordKey]) -> "Iterator[list[memoryview | None]]":
        asked = list(keys)
        with self._records.views(asked) as values:
            yield [
                None if value is None else memoryview(self._opened(key, value, self._open_recent))
                for key, value in zip(asked, values, strict=True)
            ]

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        return self._records.scan()

    def note_use(self, uses: Mapping[RecordKey, tuple[float, int]]) -> "Future[None]":
        return self._records.note_use(uses)

    def check_integrity(self) -> list[str]:
        return self._records.check_integrity(opened=partial(open_value, self._ring))

    def close(self) -> None:
        self._thread.shutdown()
        self._records.close()

    def _write(self, puts: Sequence[Put], deletes: Sequence[RecordKey], done: "Future[None]") -> None:
        try:
            written = self._records.write([self._sealed(put) for put in puts], deletes)
        except Exception as error:  # whatever it is, who waits must hear of it
            done.set_exception(error)
        else:
            written.add_done_callback(lambda _: _pass_on(written, done))

    def _sealed(self, put: Put) -> Put:
        if not put.entry.key_id:
            return put
        record = put.data[0] if len(put.data) == 1 else b"".join(put.data)
        return put._replace(data=encrypt(self._ring, put.entry.key_id, put.key, record))

    def _opened(self, key: RecordKey, value: Bytes, opener: Callable[[KeyRing, RecordKey, Bytes], Bytes]) -> Bytes:
        try:
            return opener(self._ring, key, value)
        except CipherError:
            return stand_in(key, len(value))

    def _open_recent(self, ring: KeyRing, key: RecordKey, value: Bytes) -> Bytes:
        """For who sends; who looks for damage decrypts what the disk has now."""
        if not is_encrypted(value):
            return value
        return self._recent.get(name_of(key, value), lambda: decrypt(ring, key, value))


def open_value(ring: KeyRing, key: RecordKey, value: Bytes) -> Bytes:
    """From a value, encrypted or not, to its record; CipherError where it cannot be had."""
    return decrypt(ring, key, value) if is_encrypted(value) else value


def stand_in(key: RecordKey, value_bytes: int) -> bytes:
    """What is shown for a value that does not decrypt: as long as the record was, and with a checksum that is wrong.

    So the framing of a response that has begun stays whole, and each reader finds the record bad.
    """
    size_bytes = max(0, value_bytes - CIPHER_BYTES - HEADER_BYTES)
    header = Header(
        kind=key.kind, position=0, raw_bytes=size_bytes, stored_bytes=size_bytes,
        fingerprint=key.layout, key=key.key, parent=bytes(16),
    )  # fmt: skip
    return header.pack() + bytes(size_bytes)


def _pass_on(source: "Future[None]", target: "Future[None]") -> None:
    error = source.exception()
    if error is None:
        target.set_result(None)
    else:
        target.set_exception(error)
