"""Beginning anew where a data file is damaged: it is set aside, and what documents can still be read are kept.

Records can be computed again, tokens cannot: a fleet whose tokens are gone stays out until a person makes new ones. So
another process, which a damaged tree may kill, reads the documents; each is kept if its checksum holds (documents.py).
"""

import base64
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import lmdb

from kvcairn_storage.directory import DAMAGED_NAME, DATA_NAME, READERS_NAME, SUSPECT_NAME, DataDirectory
from kvcairn_storage.documents import unseal
from kvcairn_storage.structure import structure_fault

READING_SECONDS = 60.0
_READ_THEM = "import sys; from kvcairn_storage.salvage import print_documents; print_documents(sys.argv[1])"
_LOG = logging.getLogger(__name__)


def set_damaged_aside(directory: DataDirectory) -> dict[bytes, bytes]:
    """Nothing where the data file is sound. Else make place for a new one, and return the rows of the old documents.

    For who holds the directory, before the file is opened. OSError where the file can be neither read nor renamed.
    """
    data, suspect = directory.path / DATA_NAME, directory.path / SUSPECT_NAME
    fault = structure_fault(data, reads_values=suspect.exists())
    with suppress(OSError):  # on a disk that cannot be written the next start looks as closely
        suspect.unlink(missing_ok=True)
    if fault is None:
        return {}
    documents = _documents(directory.path)
    directory.begin_anew()
    kept = _set_aside(data)
    _LOG.critical(
        "%s was damaged (%s): its records are lost, and the service begins anew with %d tenants, tokens, layouts and "
        "the like of it. The old file %s. Look at the disk: run a memory test and read the kernel's log",
        data, fault, len(documents), kept,
    )  # fmt: skip
    return documents


def _set_aside(data: Path) -> str:
    """Rename the file, and let it stay where the disk has room for another of its size."""
    damaged = data.with_name(DAMAGED_NAME)
    size_bytes = data.stat().st_blocks * 512
    data.replace(damaged)
    data.with_name(READERS_NAME).unlink(missing_ok=True)  # it counts the old file's commits
    if shutil.disk_usage(damaged.parent).free > size_bytes:
        return f"is {damaged}; remove it once it was looked at"
    damaged.unlink()
    return "was removed, since the disk has no room for two"


def _documents(directory: Path) -> dict[bytes, bytes]:
    """The rows that another process could read before it ended, however it did."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _READ_THEM, os.fspath(directory)]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program
    try:
        printed, _ = child.communicate(timeout=READING_SECONDS)
    except subprocess.TimeoutExpired:  # a damaged tree can lead in a circle
        child.kill()
        printed, _ = child.communicate()
    rows = dict(_row(line) for line in printed.splitlines() if line.endswith(b"]"))
    return {row: value for row, value in rows.items() if unseal(row, value) is not None}


def _row(line: bytes) -> tuple[bytes, bytes]:
    row, value = json.loads(line)
    return base64.b64decode(row), base64.b64decode(value)


def print_documents(directory: str) -> None:
    """Print the rows of the table of documents, one JSON array a line. For a process of its own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with lmdb.open(directory, readonly=True, lock=False, max_dbs=16) as env:
        documents = env.open_db(b"documents", create=False)
        with env.begin() as txn:
            for row, value in txn.cursor(db=documents):
                print(json.dumps([base64.b64encode(part).decode() for part in (row, value)]), flush=True)
