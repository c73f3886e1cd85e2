"""Environment: one open LMDB environment, and who uses its map just now; its errors become this package's own here.

With lmdb.py, extent.py and salvage.py all that imports lmdb.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from kvcairn_storage.directory import DATA_NAME
from kvcairn_storage.errors import StorageError, StoreClosed, StoreFull, StoreUnreadable
from kvcairn_storage.extent import Length, check_trees
from kvcairn_storage.structure import check_metas

TABLES = (b"records", b"entries", b"documents", b"meta")
MAX_READERS = 1024
DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError)
"""What LMDB says of a tree that makes no sense to it."""

_HALF_MADE = "{} holds no tables yet: its first start was cut short; start a service on it, which makes them"
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Environment:
    """An open directory. Thread-safe; ends at a fork."""

    _spare_txns = 8
    _check_file: Callable[[lmdb.Environment, Path], object] = staticmethod(check_trees)

    def _open(self, path: Path, *, readonly: bool, map_size: int, create: bool) -> None:
        self.path = path
        self._pid = os.getpid()
        self._readers = threading.Condition()
        self._reading_now, self._closed, self._is_reopening = 0, False, False
        with translated(f"{path} cannot be opened"):
            if not create:
                _refuse_half_made(path)
                check_metas(path / DATA_NAME)
            self._map(readonly=readonly, map_size=map_size, create=create)
            self._length = Length(path / DATA_NAME)

    def _map(self, *, readonly: bool, map_size: int, create: bool) -> None:
        self._env = lmdb.open(
            os.fspath(self.path), map_size=map_size, readonly=readonly, create=create,
            max_dbs=len(TABLES), max_readers=MAX_READERS, mode=0o600, max_spare_txns=self._spare_txns,
        )  # fmt: skip
        self._check_file(self._env, self.path / DATA_NAME)
        try:
            names = [self._env.open_db(name, create=create) for name in TABLES]
        except lmdb.NotFoundError:
            self._env.close()
            raise StoreUnreadable(_HALF_MADE.format(self.path)) from None
        self._records, self._entries, self._documents, self._meta = names

    def close(self) -> None:
        """Wait for readers, then unmap; closing twice is fine."""
        with self._readers:
            self._closed = True
            self._readers.wait_for(lambda: self._reading_now == 0)
        self._env.close()
        self._length.close()

    def is_dead(self) -> bool:
        """Whether LMDB refuses everything from now on: a root could not be written, and nobody knows what is there."""
        try:
            with self._env.begin():
                return False
        except lmdb.PanicError:
            return True
        except lmdb.Error:
            return False

    def _reopen(self) -> None:
        """Map the file anew once nobody reads; whoever comes meanwhile waits. StorageError where that fails."""
        map_size = self._env.info()["map_size"]
        with self._readers:
            self._is_reopening = True
            self._readers.wait_for(lambda: self._reading_now == 0)
        try:
            self._env.close()
            with translated(f"{self.path} cannot be opened again"):
                self._map(readonly=False, map_size=map_size, create=True)
        finally:
            with self._readers:
                self._is_reopening = False
                self._readers.notify_all()

    @contextmanager
    def _reading(self) -> "Iterator[lmdb.Transaction[bytes]]":
        """A read transaction whose values are copies."""
        with self._map_in_use(), self._env.begin() as txn:
            yield txn

    @contextmanager
    def _viewing(self) -> "Iterator[lmdb.Transaction[memoryview[int]]]":
        """A read transaction whose values are views into the map, good until it ends."""
        with self._map_in_use(), self._env.begin(buffers=True) as txn:
            yield txn

    @contextmanager
    def _map_in_use(self) -> Iterator[None]:
        """Keep the map from being unmapped."""
        self._check_process()
        with self._readers:
            self._readers.wait_for(lambda: not self._is_reopening)
            if self._closed:
                raise StoreClosed(f"the store in {self.path} is closed")
            self._reading_now += 1
        try:
            self._length.check()
            with translated(f"{self.path} cannot be read"):
                yield
        finally:
            with self._readers:
                self._reading_now -= 1
                self._readers.notify_all()

    def _check_process(self) -> None:
        """An environment that came over a fork shares locks and map with its parent: nothing may be done with it."""
        if os.getpid() != self._pid:
            raise StoreClosed(f"the store in {self.path} belongs to process {self._pid}; open it anew after a fork")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the errors of lmdb and of the disk into this package's own: the one border where lmdb's are known.

    StoreUnreadable alone says something of what is stored: a full table of readers, or LMDB's refusal of everything
    until it is opened anew, does not.
    """
    try:
        yield
    except StorageError:
        raise
    except (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError, lmdb.ReadersFullError) as error:
        raise StoreFull(f"{what}: {error}") from error
    except lmdb.PanicError as error:
        raise StoreClosed(f"{what}: {error}") from error
    except (lmdb.Error, OSError) as error:
        number = error.errno if isinstance(error, OSError) else error.code
        raise (StoreFull if number in _FULL_ERRNOS else StoreUnreadable)(f"{what}: {error}") from error


def _refuse_half_made(path: Path) -> None:
    """Between a directory's identity and its data file lies a moment in which its first start may be killed."""
    if not (path / DATA_NAME).exists():
        raise StoreUnreadable(_HALF_MADE.format(path))
