"""A data directory read in place by a process that does not serve it: one map a process, opened anew when it must be.

Why so: docs/decisions/attach.md. What a path names can change under its readers: the directory is deleted and made
anew, the file is cut, the map grows. So all of it is looked at before each use, and what cannot be had is a
StorageError: whoever reads here can ask the service instead.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvcairn_storage.directory import DATA_NAME, read_identity
from kvcairn_storage.errors import StorageError, StoreUnreadable
from kvcairn_storage.extent import check_length
from kvcairn_storage.lmdb import LmdbReader
from kvcairn_storage.store import RecordKey

READERS_NAME = "lock.mdb"
_BEYOND_ANY_PLACE = b"\xff" * 66


class AttachedReader(LmdbReader):
    """One open map of a directory, good for as long as the path names the same files. Thread-safe; ends at a fork."""

    _spare_txns = 0  # a child that drops an inherited one would free its parent's place in the table of readers
    _check_file = staticmethod(check_length)  # at opening; a closer look could take minutes

    def __init__(self, path: Path) -> None:
        """StorageError where the directory cannot be read, or not safely."""
        read_identity(path)  # before all else: it says best what is wrong with a wrong path
        # LMDB reads a read-only file system without a lock, and then nobody knows which pages are being read.
        if not os.access(path / READERS_NAME, os.W_OK):
            raise StoreUnreadable(f"{path / READERS_NAME} cannot be written, and whoever reads has to be known by it")
        self._data = path / DATA_NAME
        self._place = _place(_status(self._data))
        try:
            super().__init__(path)
            self.check()
        except BaseException:
            with suppress(AttributeError):
                self._env.close()
            raise

    def close(self) -> None:
        """As LmdbReader's; nothing in a forked child, where it would end the reads of its parent."""
        if os.getpid() == self._pid:
            super().close()

    def check(self) -> None:
        """StorageError unless the path still names what is mapped, and all of its tree is inside the file.

        What happens to the file after this, until the records are read, can still kill the process, as it can the
        service itself (docs/decisions/damage.md).
        """
        with self._map_in_use():
            status = check_length(self._env, self._data)
        if _place(status) != self._place:
            raise StoreUnreadable(f"{self.path} is another directory now")

    @contextmanager
    def views(self, keys: Iterable[RecordKey]) -> "Iterator[list[memoryview | None]]":
        """As LmdbReader's, of a directory that was checked just before."""
        self.check()
        with super().views(keys) as views:
            yield views

    def tenants(self) -> set[str]:
        """The ids of the tenants that have records; one step a tenant."""
        found: set[str] = set()
        with self._reading() as txn, txn.cursor(db=self._entries) as cursor:
            start = b"\0"
            while cursor.set_range(start):
                row = cursor.key()
                tenant = row[1 : 1 + row[0]]
                found.add(tenant.decode())
                start = row[:1] + tenant + _BEYOND_ANY_PLACE
        return found


class Attached:
    """A directory that several of this process read: LMDB allows one open map of it a process. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self._lock = threading.Lock()
        self._reader: AttachedReader | None = None

    def reader(self, generation: str) -> AttachedReader:
        """The directory as it is now, opened anew where it changed; StorageError where it is not of this generation."""
        with self._lock:
            reader = self._still_good() or self._opened()
        if reader.identity.generation != generation:
            raise StoreUnreadable(
                f"{self.path} is generation {reader.identity.generation}, the service serves {generation}"
            )
        return reader

    def close(self) -> None:
        """Wait for who reads just now, and unmap; a later `reader` maps it again."""
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()

    def _still_good(self) -> AttachedReader | None:
        reader = self._reader
        if reader is None:
            return None
        try:
            with reader.views(()):
                return reader
        except StorageError:
            self._reader = None
            reader.close()
            return None

    def _opened(self) -> AttachedReader:
        self._reader = AttachedReader(self.path)
        return self._reader


_known: dict[Path, Attached] = {}
_knowing = threading.Lock()


def _begin_anew() -> None:
    """In a forked child: a map of its parent is nothing to it, and a thread left behind may hold the lock."""
    global _knowing  # noqa: PLW0603
    _knowing = threading.Lock()
    _known.clear()


os.register_at_fork(after_in_child=_begin_anew)


def attach(path: Path) -> Attached:
    """The one Attached of this directory in this process; `detach` gives it back."""
    path = path.absolute()
    with _knowing:
        found = _known.setdefault(path, Attached(path))
        found.users += 1
    return found


def detach(attached: Attached) -> None:
    """The last one to give it back closes the map."""
    with _knowing:
        attached.users -= 1
        is_last = not attached.users
        if is_last:
            del _known[attached.path]
    if is_last:
        attached.close()


def _status(data: Path) -> os.stat_result:
    try:
        return data.stat()
    except OSError as error:
        raise StoreUnreadable(f"{data} cannot be attached to: {error}") from error


def _place(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from any other while it is open."""
    return status.st_dev, status.st_ino
