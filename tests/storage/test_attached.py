"""Reading a directory in place, beside a real process that owns it, whatever becomes of the directory meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.attached import Attached, AttachedReader, attach, detach
from kvcairn_storage.directory import read_identity
from kvcairn_storage.errors import StorageError, StoreUnreadable, UnknownFormat
from kvcairn_storage.store import RecordKey
from kvcairn_storage.testing import LAYOUT, SECONDS

OWNER = Path(__file__).with_name("owning_process.py")
MAP_BYTES = 8 << 20
SIZE = 100_000


class Owner:
    """The process that serves the directory, as far as the store goes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.tell("open", directory, MAP_BYTES)

    def tell(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the owner is gone"
        return answer.strip()

    def put(self, first: int, count: int, *, size: int = SIZE, tenant: str = "t") -> None:
        self.tell("put", tenant, first, count, size)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    running = Owner(tmp_path / "data")
    yield running
    running.end()


@pytest.fixture
def attached(owner: Owner) -> Iterator[Attached]:
    found = attach(owner.directory)
    yield found
    detach(found)


def reader_of(attached: Attached) -> AttachedReader:
    return attached.reader(read_identity(attached.path).generation)


def keys_of(indices: range, tenant: str = "t") -> list[RecordKey]:
    return [RecordKey(tenant, LAYOUT, Kind.HISTORY, index.to_bytes(4, "little") * 8) for index in indices]


def payloads(reader: AttachedReader, keys: list[RecordKey]) -> list[bytes | None]:
    with reader.views(keys) as views:
        return [None if view is None else bytes(view[128:]) for view in views]


def right(indices: range, size: int = SIZE) -> list[bytes]:
    return [(index.to_bytes(4, "little") * 8 * size)[:size] for index in indices]


def in_child(work: Callable[[], object]) -> None:
    """Run it in a forked child that ends at once; its failure is this test's."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_what_the_owner_committed_is_there_and_what_comes_later_too(owner: Owner, attached: Attached) -> None:
    owner.put(0, 3)
    reader = reader_of(attached)
    assert payloads(reader, keys_of(range(4))) == [*right(range(3)), None]
    owner.put(3, 1)
    assert payloads(reader, keys_of(range(4))) == right(range(4))
    assert reader_of(attached) is reader


def test_the_tenants_are_those_that_have_records(owner: Owner, attached: Attached) -> None:
    assert reader_of(attached).tenants() == set()
    for tenant in ("a", "bb", "ba", "\x7f" * 255):
        owner.put(0, 2, size=10, tenant=tenant)
    assert reader_of(attached).tenants() == {"a", "bb", "ba", "\x7f" * 255}


def test_an_owner_that_comes_back_is_read_through_the_same_map(owner: Owner, attached: Attached) -> None:
    owner.put(0, 2)
    reader = reader_of(attached)
    owner.end()
    assert payloads(reader, keys_of(range(2))) == right(range(2))
    again = Owner(owner.directory)
    again.put(2, 2)
    assert payloads(reader, keys_of(range(4))) == right(range(4))
    again.end()


def test_a_directory_made_anew_is_opened_anew_and_the_old_one_is_not_read(owner: Owner, attached: Attached) -> None:
    owner.put(0, 2)
    old = reader_of(attached)
    owner.end()
    shutil.rmtree(owner.directory)
    with pytest.raises(StoreUnreadable):
        payloads(old, keys_of(range(2)))
    with pytest.raises((StoreUnreadable, UnknownFormat)):
        attached.reader(old.identity.generation)
    again = Owner(owner.directory)
    again.put(5, 1)
    with pytest.raises(StoreUnreadable, match="the service serves"):
        attached.reader(old.identity.generation)
    assert payloads(reader_of(attached), keys_of(range(4, 6))) == [None, *right(range(5, 6))]
    again.end()


def test_a_file_that_was_replaced_is_not_taken_for_the_old_one(owner: Owner) -> None:
    owner.put(0, 2)
    old = AttachedReader(owner.directory)
    owner.end()
    shutil.rmtree(owner.directory)
    again = Owner(owner.directory)
    again.put(0, 9)
    with pytest.raises(StoreUnreadable, match="another directory now"):
        payloads(old, keys_of(range(2)))
    old.close()
    again.end()


def test_a_map_that_grew_is_opened_anew(owner: Owner, attached: Attached) -> None:
    owner.put(0, 2)
    small = reader_of(attached)
    owner.tell("close")
    owner.tell("open", owner.directory, 4 * MAP_BYTES)
    owner.put(2, 4, size=3 << 20)
    with pytest.raises(StoreUnreadable, match="RESIZED"):
        payloads(small, keys_of(range(2)))
    assert payloads(reader_of(attached), keys_of(range(2, 6))) == right(range(2, 6), 3 << 20)


def test_a_file_that_was_cut_is_refused_and_kills_nobody(owner: Owner, attached: Attached) -> None:
    owner.put(0, 40)
    reader = reader_of(attached)
    payloads(reader, keys_of(range(1)))
    owner.end()
    os.truncate(owner.directory / "data.mdb", 8 * 4096)
    with pytest.raises(StoreUnreadable, match=r"was cut|its tree goes on to"):
        payloads(reader, keys_of(range(40)))
    for _ in range(2):
        with pytest.raises(StoreUnreadable, match=r"was cut|its tree goes on to"):
            reader_of(attached)


def test_a_directory_without_a_table_of_readers_that_can_be_written_is_refused(owner: Owner, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("data.mdb", "kvcairn.json"):
        shutil.copy(owner.directory / name, copy / name)
    with pytest.raises(StoreUnreadable, match=r"lock\.mdb cannot be written"):
        AttachedReader(copy)
    assert not (copy / "lock.mdb").exists()


def test_a_path_that_leads_to_no_data_directory_is_called_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UnknownFormat, match="is no kvcairn data directory"):
            AttachedReader(path)


@pytest.mark.parametrize("ending", ["close", "drop", "read"])
def test_a_forked_child_does_not_end_the_reads_of_its_parent(owner: Owner, attached: Attached, ending: str) -> None:
    """A place in the table of readers that a child gave back would let the owner re-use pages under its parent."""
    owner.put(0, 2)
    reader = reader_of(attached)

    def child() -> None:
        if ending == "close":
            reader.close()
        if ending == "drop":
            del reader.__dict__["_env"]
        if ending == "read":
            with pytest.raises(StorageError):
                payloads(reader, keys_of(range(2)))

    in_child(child)
    with reader.views(keys_of(range(2))) as views:
        before = owner.tell("readers")
        in_child(child)
        assert owner.tell("readers") == before
        assert [None if view is None else bytes(view[128:]) for view in views] == right(range(2))
    in_child(child)
    assert payloads(reader, keys_of(range(2))) == right(range(2))


def test_one_map_serves_all_of_a_process_and_the_last_to_leave_closes_it(owner: Owner) -> None:
    owner.put(0, 1)
    one, other = attach(owner.directory), attach(Path(os.fspath(owner.directory)))
    assert one is other
    reader = reader_of(one)
    detach(other)
    assert payloads(reader, keys_of(range(1))) == right(range(1))
    detach(one)
    with pytest.raises(StorageError, match="closed"):
        payloads(reader, keys_of(range(1)))
    again = attach(owner.directory)
    assert payloads(reader_of(again), keys_of(range(1))) == right(range(1))
    detach(again)


def test_a_reader_that_was_killed_does_not_keep_the_owner_from_using_pages_again(owner: Owner) -> None:
    owner.put(0, 20)
    script = (
        "import sys, time; from pathlib import Path; from kvcairn_storage.attached import AttachedReader\n"
        "with AttachedReader(Path(sys.argv[1])).views(()): print('reading', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(owner.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGKILL)
    for _ in range(6):
        owner.put(0, 20)
    assert 7 * 20 * SIZE > MAP_BYTES
