"""Whether a data file is as long as its tree: whoever reads a mapped page beyond the end of the file is killed.

A sound file may be shorter than its highest page: what one transaction took at the end and gave back is never written.
So the writer makes such a file longer after each commit. One that is short all the same was cut off, or its writer
was killed just then; another process, which may die of it, reads the tree to tell which. With lmdb.py the only module
that imports lmdb.
"""

import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import lmdb

from kvcairn_storage.errors import StoreUnreadable

_READ_IT = "import sys; from kvcairn_storage.extent import read_every_page; read_every_page(sys.argv[1])"


def check_extent(env: lmdb.Environment, data: Path) -> None:
    """StoreUnreadable if the tree reaches beyond the end of the data file; before anything else is read."""
    need_bytes, has_bytes = _tree_bytes(env), data.stat().st_size
    if has_bytes >= need_bytes:
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _READ_IT, os.fspath(data.parent)]
    read = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603 - our own program
    if read.returncode:
        raise StoreUnreadable(
            f"{data} is damaged: it has {has_bytes:,} bytes, its tree goes on to {need_bytes:,}, and reading it ended "
            f"with status {read.returncode}; restore a backup or start on an empty directory"
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
    with suppress(OSError):  # what was committed stays so; the next to open the file takes a closer look
        if data.stat().st_size < need_bytes:
            os.truncate(data, need_bytes)


def read_every_page(directory: str) -> None:
    """Touch all pages that the tree refers to, in a process of its own: it is killed where the file ends before."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with lmdb.open(directory, readonly=True, max_dbs=16) as env:
        with env.begin(buffers=True) as txn:
            for table in [bytes(name) for name, _ in txn.cursor()]:
                for _, value in txn.cursor(db=env.open_db(table, txn=txn, create=False)):
                    bytes(value[-1:])
        with Path(os.devnull).open("wb") as nowhere:
            env.copyfd(nowhere.fileno(), compact=True)  # reads the list of free pages, which no cursor shows


def _tree_bytes(env: lmdb.Environment) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])
