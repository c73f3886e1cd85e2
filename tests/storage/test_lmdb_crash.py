"""What outlives a process that is killed, and who may open a directory meanwhile. Real processes, real SIGKILL."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvcairn_storage.errors import StoreClosed, StoreInUse, UnknownFormat
from kvcairn_storage.integrity import is_sound
from kvcairn_storage.lmdb import LmdbReader, LmdbStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import SECONDS, make_put, make_record

WRITER = Path(__file__).with_name("writing_process.py")
MAP_BYTES = 1 << 30


@contextmanager
def writer(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that stores one record after the other."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, WRITER, directory], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)
        process.stdout.close()  # type: ignore[union-attr]


def acknowledged(process: "subprocess.Popen[str]", count: int) -> list[bytes]:
    assert process.stdout is not None
    return [bytes.fromhex(process.stdout.readline()) for _ in range(count)]


def test_what_was_acknowledged_survives_a_kill_and_nothing_is_half_stored(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        keys = acknowledged(process, 40)
        process.kill()
    store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    assert store.check_integrity() == []
    for key in keys:
        record = make_record(key=key, payload=key * 4096)
        assert store.get(record.key) == b"".join(record.data)
    store.write([make_put(make_record(key=b"n" * 32))]).result(SECONDS)
    store.close()


def test_a_second_process_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        acknowledged(process, 1)
        with pytest.raises(StoreInUse, match=f"in use by process {process.pid};"):
            LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    LmdbStore(tmp_path, map_bytes=MAP_BYTES).close()


def test_checking_and_backing_up_beside_a_running_service(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with writer(directory) as process:
        keys = acknowledged(process, 30)
        reader = LmdbReader(directory)
        seen: list[int] = []
        assert reader.check_integrity(seen.append) == []
        assert sum(seen) >= 30
        reader.backup(copy)
        acknowledged(process, 5)
        assert reader.count() > 30
        reader.close()
    store = LmdbStore(copy, map_bytes=MAP_BYTES)
    assert store.check_integrity() == []
    assert {key.key for key, _ in store.scan()} >= set(keys)
    assert store.identity.generation != reader.identity.generation
    store.close()


BACKUP_WITHIN_A_MEGABYTE = (
    "import pathlib, resource, signal, sys; from kvcairn_storage.lmdb import LmdbReader\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); signal.signal(signal.SIGXFSZ, eval(sys.argv[3]))\n"
    "LmdbReader(pathlib.Path(sys.argv[1])).backup(pathlib.Path(sys.argv[2]))"
)
"""Ends in the middle of the copy: by a signal that kills, or by an error, as the third argument has it."""


def cut_backup(directory: Path, copy: Path, how: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BACKUP_WITHIN_A_MEGABYTE, directory, copy, how]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A data directory with 4 MB of records."""
    store = LmdbStore(tmp_path / "data", map_bytes=MAP_BYTES)
    store.write([make_put(make_record(key=bytes([n]) * 32, payload=bytes(1 << 20))) for n in range(4)]).result(SECONDS)
    store.close()
    return tmp_path / "data"


def test_a_backup_that_was_killed_is_refused_and_says_why(tmp_path: Path, filled: Path) -> None:
    copy = tmp_path / "copy"
    assert cut_backup(filled, copy, "signal.SIG_DFL").returncode == -signal.SIGXFSZ
    assert (copy / "data.mdb").stat().st_size > 0
    reader = LmdbReader(filled)
    for use in (LmdbReader, lambda path: LmdbStore(path, map_bytes=MAP_BYTES), reader.backup):
        with pytest.raises(UnknownFormat, match="a backup into it was cut short"):
            use(copy)
    reader.close()


def test_a_backup_that_failed_leaves_its_target_as_it_was(tmp_path: Path, filled: Path) -> None:
    copy = tmp_path / "copy"
    done = cut_backup(filled, copy, "signal.SIG_IGN")
    assert (done.returncode, f"{filled} cannot be copied to {copy}" in done.stderr) == (1, True)
    assert list(copy.iterdir()) == []
    reader = LmdbReader(filled)
    reader.backup(copy)
    reader.close()
    again = LmdbReader(copy)
    assert (again.count(), again.check_integrity()) == (4, [])
    again.close()


def test_a_store_is_not_carried_over_a_fork(tmp_path: Path) -> None:
    """The child is a plain fork, as a careless embedder makes one; it must get an error, never a shared map."""
    script = (
        "import os, sys, pathlib; from kvcairn_storage.lmdb import LmdbStore;"
        "from kvcairn_storage.testing import make_put, make_record; from kvcairn_storage.errors import StoreClosed\n"
        "store = LmdbStore(pathlib.Path(sys.argv[1]), map_bytes=1 << 24); put = make_put(make_record(key=bytes(32)))\n"
        "if os.fork() == 0:\n"
        "    refused = 0\n"
        "    for call in (lambda: store.get(put.key), lambda: store.write([put]), store.close):\n"
        "        try: call()\n"
        "        except StoreClosed: refused += 1\n"
        "    os._exit(refused)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1])); store.write([put]).result(); store.close()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, tmp_path],
        capture_output=True, text=True, env=environment, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout == "3\n"


def test_a_closed_store_serves_nobody_and_lets_its_directory_go(tmp_path: Path) -> None:
    store = PrefixStore(LmdbStore(tmp_path, map_bytes=MAP_BYTES), capacity_bytes=1 << 20)
    record = make_record(key=bytes(32))
    store.put([record]).result(SECONDS)
    with pytest.raises(StoreInUse, match=f"process {os.getpid()};"):
        LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.get(record.key)
    again = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    ((key, entry),) = again.scan()
    assert is_sound(key, entry, again.get(record.key) or b"")
    again.close()
