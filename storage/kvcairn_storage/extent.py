"""Whether a data file is as long as its tree: whoever reads a mapped page beyond the end of the file is killed.

A sound file may be shorter than its highest page: what one transaction took at the end and gave back is never written.
So the writer makes such a file longer after each commit, and what is shorter than it once was has been cut.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

import lmdb

from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.structure import structure_fault

TRIES = 5
_LOG = logging.getLogger(__name__)


def check_trees(env: lmdb.Environment, data: Path) -> None:
    """StoreUnreadable if the trees are damaged as a reader sees them at this moment; the service may go on writing."""
    fault: str | None = None
    for _ in range(TRIES):  # the page that says where a commit's trees begin is written over two commits later
        with env.begin() as txn:
            fault = structure_fault(data, commit=txn.id())
        if fault is None:
            return
    raise StoreUnreadable(
        f"{data} is damaged: {fault}; restore a backup, or start the service on it, which sets it aside and begins anew"
    )


def check_length(env: lmdb.Environment, data: Path) -> os.stat_result:
    """StoreUnreadable if the file is shorter than its tree, as a sound one can be between a commit and `extend`.

    For who has no time for a closer look, and another way to the records. Returns the file's status.
    """
    need_bytes, status = _tree_bytes(env), data.stat()
    if status.st_size < need_bytes:
        raise StoreUnreadable(f"{data} has {status.st_size:,} bytes, its tree goes on to {need_bytes:,}")
    return status


def extend(env: lmdb.Environment, data: Path) -> None:
    """Make the file as long as its tree, without taking disk space."""
    need_bytes = _tree_bytes(env)
    with suppress(OSError):  # what was committed stays so, and no reader looks at a page that was never written
        if data.stat().st_size < need_bytes:
            os.truncate(data, need_bytes)


def _tree_bytes(env: lmdb.Environment) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


class Length:
    """How long an open data file was at least; it never becomes shorter by itself. Thread-safe.

    fault: None until it was seen to be cut; what is made longer again afterwards holds zeros.
    """

    def __init__(self, data: Path) -> None:
        self.fault: str | None = None
        self._data = data
        self._descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
        self._known_bytes = os.fstat(self._descriptor).st_size

    def note(self) -> None:
        """After a commit: the file may have grown."""
        self._known_bytes = max(self._known_bytes, os.fstat(self._descriptor).st_size)

    def check(self) -> None:
        """StoreUnreadable, from then on for ever, once the file is shorter than it was: it costs a microsecond."""
        known_bytes = self._known_bytes  # before the look at the file, which may grow, and be noted, after that
        has_bytes = os.fstat(self._descriptor).st_size
        if self.fault is None and has_bytes < known_bytes:
            self.fault = f"{self._data} was cut while it was in use: from {known_bytes:,} to {has_bytes:,} bytes"
            _LOG.critical("%s: it is read no more; a restart begins anew", self.fault)
        if self.fault is not None:
            raise StoreUnreadable(self.fault)

    def close(self) -> None:
        """Closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
