"""The data directory: its format and generation, and the lock that keeps a second process out.

kvcairn.json holds the format version and the generation, an id made anew with each directory, so that whoever knew the
old one notices. The lock is the kernel's: it ends with its process, however that ends.

Older formats that this version reads are upgraded when the directory is next opened to be served, so that a version
which does not know the new one refuses it (docs/decisions/lmdb.md, "Formats").
"""

import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kvcairn_storage.errors import StoreInUse, StoreUnreadable, UnknownFormat

FORMAT = 2
READ_FORMATS = (1, 2)
"""In format 2 an entry's row may go on with the writer's id (rows.py); rows of format 1 are rows of it as well."""

FULL_BELOW_BYTES = 1 << 20
FORMAT_NAME, LOCK_NAME, DATA_NAME = "kvcairn.json", "kvcairn.lock", "data.mdb"
READERS_NAME, DAMAGED_NAME, SUSPECT_NAME = "lock.mdb", "data.mdb.damaged", "kvcairn.suspect"
"""LMDB's table of readers; a damaged file that was set aside; what asks the next start for a closer look."""

_LOG = logging.getLogger(__name__)


class Identity(NamedTuple):
    """What a directory says of itself."""

    format: int
    generation: str


def read_identity(directory: Path) -> Identity:
    """The identity of an existing directory; UnknownFormat for a newer or foreign one."""
    try:
        document = json.loads((directory / FORMAT_NAME).read_bytes())
        identity = Identity(int(document["format"]), str(document["generation"]))
    except FileNotFoundError:
        _refuse_data_of_nobody(directory)
        raise UnknownFormat(f"{directory} is no kvcairn data directory: it has no {FORMAT_NAME}") from None
    except OSError as error:
        raise StoreUnreadable(f"{directory / FORMAT_NAME} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownFormat(f"{directory / FORMAT_NAME} does not name a format and a generation: {error!r}") from error
    if identity.format not in READ_FORMATS:
        known = " and ".join(map(str, READ_FORMATS))
        raise UnknownFormat(
            f"{directory} has data format {identity.format}, and this version of kvcairn reads {known}: run the "
            "version that wrote it, or start on a backup or an empty directory"
        )
    return identity


def _refuse_data_of_nobody(directory: Path) -> None:
    """A backup writes the identity last, so that one that was killed is known by lacking it."""
    if (directory / DATA_NAME).exists() and not (directory / FORMAT_NAME).exists():
        raise UnknownFormat(
            f"{directory} holds a {DATA_NAME} but no {FORMAT_NAME}: kvcairn did not make it, "
            "or a backup into it was cut short; choose another, or empty it"
        )


@contextmanager
def new_data_file(directory: Path) -> Iterator[int]:
    """A descriptor to write a whole data file by, in a directory that is missing or empty; made ours when it is there.

    Nobody but the owner can read it at any moment: it holds every tenant's records and token hashes. Where writing
    fails it is removed again.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_data_of_nobody(directory)
    if any(directory.iterdir()):
        raise StoreUnreadable(f"{directory} is not empty; a backup goes into an empty directory")
    descriptor = os.open(directory / DATA_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
        os.fsync(descriptor)
    except BaseException:
        (directory / DATA_NAME).unlink()
        raise
    finally:
        os.close(descriptor)
    _create_identity(directory)


def _create_identity(directory: Path) -> Identity:
    identity = Identity(FORMAT, secrets.token_hex(16))
    _write_identity(directory, identity)
    return identity


def _write_identity(directory: Path, identity: Identity) -> None:
    _write_durably(directory / FORMAT_NAME, json.dumps(identity._asdict()).encode())


def _write_durably(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is there as a whole or not at all."""
    fresh = path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DataDirectory:
    """An open, locked data directory, made if it was not there."""

    def __init__(self, path: Path) -> None:
        """StoreInUse if another process holds it, UnknownFormat if it is not ours, else StoreUnreadable."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path / LOCK_NAME)
        except OSError as error:
            raise StoreUnreadable(f"the data directory {path} cannot be opened: {error}") from error
        try:
            self.identity = self._identify()
        except BaseException:
            self.close()
            raise

    def begin_anew(self) -> None:
        """Another generation, for another data file: whoever knew the old one notices."""
        self.identity = _create_identity(self.path)

    def close(self) -> None:
        """Let others have it; closing twice is fine."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identify(self) -> Identity:
        known = read_identity(self.path) if (self.path / FORMAT_NAME).exists() else None
        if known is not None and known.format == FORMAT:
            return known
        _refuse_data_of_nobody(self.path)
        try:
            return _upgrade(self.path, known) if known else _create_identity(self.path)
        except OSError as error:
            raise StoreUnreadable(f"the data directory {self.path} cannot be written: {error}") from error


def _upgrade(directory: Path, old: Identity) -> Identity:
    """Name the new format, and keep the generation: the records are the same.

    Before anything is written, so that a kill leaves either an old directory or a new one, and no third.
    """
    identity = Identity(FORMAT, old.generation)
    _write_identity(directory, identity)
    _LOG.warning(
        "%s had data format %d and has %d now: versions of kvcairn that know no more than %d will refuse it",
        directory, old.format, FORMAT, old.format,
    )  # fmt: skip
    return identity


def _lock(path: Path) -> int:
    """Lock a file for this process, and write the process's id into it for the next who tries."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreInUse(f"{path.parent} is in use by process {holder}; stop that one or choose another") from None
    with suppress(OSError):  # on a full disk the lock counts all the same, and nobody learns who has it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def is_full(path: Path) -> bool:
    """Whether the file system has next to nothing left."""
    figures = os.statvfs(path)
    return figures.f_bavail * figures.f_frsize < FULL_BELOW_BYTES


def default_capacity_bytes(directory: Path) -> int:
    """Half of what the file system has free, counting what the directory's own data file takes as free.

    Without the latter, a store that was restarted would shrink each time.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    figures = os.statvfs(existing)
    data = directory / DATA_NAME
    own_bytes = data.stat().st_blocks * 512 if data.exists() else 0
    return (figures.f_bavail * figures.f_frsize + own_bytes) // 2
