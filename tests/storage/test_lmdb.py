"""What only a disk can do: outlive a restart, run full, rot, be of another format."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcairn_storage.directory import default_capacity_bytes
from kvcairn_storage.errors import StorageError, StoreFull, StoreUnreadable, UnknownFormat
from kvcairn_storage.lmdb import LmdbReader, LmdbStore, map_bytes_for
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.testing import LAYOUT, SECONDS, ManualClock, make_chain, make_put, make_record, make_state

PAGE = 4096
MAP_BYTES = 64 << 20
KEYS = [bytes([index + 1]) * 32 for index in range(30)]


def opened(directory: Path, clock: ManualClock, capacity_bytes: int = 1 << 20) -> PrefixStore:
    return PrefixStore(LmdbStore(directory, map_bytes=MAP_BYTES), capacity_bytes=capacity_bytes, clock=clock)


def depth(store: PrefixStore, chain: list[NewRecord]) -> int:
    keys = [block.header.key for block in chain]
    return store.longest_run(tenant="t", layout=LAYOUT, keys=keys, block_tokens=128).history_blocks


def test_everything_outlives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    store, chain = opened(tmp_path, clock), make_chain(KEYS)
    state = make_state(chain[4])
    store.put([*chain, state]).result(SECONDS)
    store.touch([chain[3].key])
    before = store.usage()
    store.close()
    again = opened(tmp_path, clock)
    assert again.usage() == before
    assert again.longest_run(tenant="t", layout=LAYOUT, keys=KEYS, block_tokens=128) == (30, [640])
    assert again.get(state.key) == b"".join(state.data)
    assert again.check_integrity() == []
    again.close()


def test_recency_outlives_a_restart_so_that_the_same_records_go(tmp_path: Path, clock: ManualClock) -> None:
    store, old, fresh = opened(tmp_path, clock), make_chain(KEYS[:15]), make_chain(KEYS[15:])
    store.put([*old, *fresh]).result(SECONDS)
    clock.advance(5)
    store.touch([old[9].key])
    store.close()
    again = opened(tmp_path, clock, capacity_bytes=12 * PAGE)
    assert (depth(again, old), depth(again, fresh)) == (10, 2)
    again.close()
    wider = opened(tmp_path, clock, capacity_bytes=40 * PAGE)
    assert (depth(wider, old), wider.check_integrity()) == (10, [])
    wider.close()


def test_a_smaller_map_cuts_nothing_and_a_larger_one_gives_room(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes=8 << 20)
    large = [make_put(make_record(key=key, payload=bytes(1 << 20))) for key in KEYS[:10]]
    for put in large[:5]:
        store.write([put]).result(SECONDS)
    store.close()
    smaller = LmdbStore(tmp_path, map_bytes=1 << 20)
    assert smaller.check_integrity() == []
    assert isinstance(smaller.write([large[5]]).exception(SECONDS), StoreFull)
    smaller.close()
    larger = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    larger.write(large).result(SECONDS)
    assert larger.count() == 10
    larger.close()


def test_a_full_map_refuses_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes=4 << 20)
    small = [make_put(make_record(key=key)) for key in KEYS[:10]]
    large = make_put(make_record(key=KEYS[20], payload=bytes(8 << 20)))
    answers = [store.write([put]) for put in (*small[:5], large, *small[5:])]
    assert isinstance(answers[5].exception(SECONDS), StoreFull)
    assert [answer.exception(SECONDS) for index, answer in enumerate(answers) if index != 5] == [None] * 10
    assert store.get(large.key) is None
    assert store.check_integrity() == []
    store.close()


def test_a_map_smaller_than_the_capacity_is_a_smaller_cache_and_not_a_dead_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = PrefixStore(LmdbStore(tmp_path, map_bytes=8 << 20), capacity_bytes=1 << 30, clock=clock)
    for index in range(60):
        record = make_record(key=bytes([7, index]) * 16, payload=bytes(300_000))
        (result,) = store.put([record]).result(SECONDS)
        assert result.outcome == "stored"
        assert store.exists([record.key]) == [True]
    assert store.check_integrity() == []
    store.close()


def test_churn_at_full_capacity_never_meets_a_full_map(tmp_path: Path, clock: ManualClock) -> None:
    """Values of mixed sizes, replaced many times over, within the share of the map that is promised."""
    capacity_bytes = 16 << 20
    records = LmdbStore(tmp_path, map_bytes=capacity_bytes * 5 // 4 + (4 << 20))
    store = PrefixStore(records, capacity_bytes=capacity_bytes, clock=clock)
    for index in range(250):
        payload = bytes((200 + 37 * (index % 11)) << 10)
        record = make_record(key=index.to_bytes(2, "big") * 16, payload=payload)
        assert [str(result.outcome) for result in store.put([record]).result(SECONDS)] == ["stored"]
    evicted = sum(usage.evicted_records for usage in store.usage())
    assert evicted + sum(usage.records for usage in store.usage()) == 250
    assert store.charged_bytes > capacity_bytes * 9 // 10
    store.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount, unmount = shutil.which("mount") or "mount", shutil.which("umount") or "umount"
    command = [mount, "-t", "tmpfs", "-o", "size=8m", "tmpfs", place]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run([unmount, "--lazy", place], check=True)


def test_a_full_disk_is_an_answer_and_the_store_goes_on(tiny_disk: Path, clock: ManualClock) -> None:
    store = PrefixStore(LmdbStore(tiny_disk, map_bytes=MAP_BYTES), capacity_bytes=1 << 30, clock=clock)
    (tiny_disk / "somebody-elses").write_bytes(bytes(3 << 20))
    outcomes = set()
    for index in range(40):
        record = make_record(key=bytes([7, index]) * 16, payload=bytes(300_000))
        outcomes |= {str(result.outcome) for result in store.put([record]).result(SECONDS)}
    assert outcomes <= {"stored", "full"}
    assert "stored" in outcomes
    records = [usage.records for usage in store.usage()]
    assert 1 <= records[0] < 40
    assert store.check_integrity() == []
    (tiny_disk / "somebody-elses").unlink()
    record = make_record(key=bytes(32), payload=bytes(300_000))
    assert [str(result.outcome) for result in store.put([record]).result(SECONDS)] == ["stored"]
    store.close()


def test_a_disk_that_is_full_from_the_start_is_an_error_and_no_crash(tiny_disk: Path) -> None:
    (tiny_disk / "somebody-elses").write_bytes(bytes(7 << 20))
    store = LmdbStore(tiny_disk, map_bytes=MAP_BYTES)
    big = make_put(make_record(key=KEYS[0], payload=bytes(4 << 20)))
    assert isinstance(store.write([big]).exception(SECONDS), StoreFull)
    small = make_put(make_record(key=KEYS[1]))
    store.write([small]).result(SECONDS)
    assert store.get(small.key) == b"".join(small.data)
    store.close()


def test_flipped_bits_in_the_data_file_are_found(tmp_path: Path, clock: ManualClock) -> None:
    records = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    puts = [make_put(make_record(key=key, payload=key * 4000)) for key in KEYS[:5]]
    records.write(puts).result(SECONDS)
    records.close()
    image = bytearray((tmp_path / "data.mdb").read_bytes())
    for key in (KEYS[1], KEYS[3]):
        image[image.index(key * 3000) + 50_000] ^= 0x10
    (tmp_path / "data.mdb").write_bytes(image)
    store = opened(tmp_path, clock)
    faults = store.check_integrity()
    assert len(faults) == 2
    assert [KEYS[at].hex() in fault and "checksum" in fault for at, fault in zip((1, 3), faults, strict=True)] == [
        True
    ] * 2
    assert store.quarantine(puts[1].key)
    assert not store.quarantine(puts[2].key)
    assert len(store.check_integrity()) == 1
    store.close()


def test_a_record_without_entry_and_an_entry_without_record_are_found(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    store.write([make_put(block) for block in make_chain(KEYS[:20])]).result(SECONDS)
    store.close()
    environment = lmdb.open(os.fspath(tmp_path), map_size=MAP_BYTES, max_dbs=8)
    for table, key in ((b"entries", KEYS[2]), (b"records", KEYS[18])):
        with environment.begin(write=True, db=environment.open_db(table)) as txn:
            rows = [row for row, _ in txn.cursor() if row.endswith(key)]
            assert [txn.delete(row) for row in rows] == [True]
    environment.close()
    reader = LmdbReader(tmp_path)
    faults = reader.check_integrity()
    reader.close()
    assert len(faults) == 2
    assert KEYS[2].hex() in faults[0]
    assert "there is a record, but no entry" in faults[0]
    assert KEYS[18].hex() in faults[1]
    assert "there is an entry, but no record" in faults[1]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": "x", "generation": ""}'])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "kvcairn.json").write_text(content)
    with pytest.raises(UnknownFormat, match="does not name a format and a generation"):
        LmdbStore(tmp_path, map_bytes=MAP_BYTES)


def test_somebody_elses_data_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"precious")
    for open_it in (lambda: LmdbStore(tmp_path, map_bytes=MAP_BYTES), lambda: LmdbReader(tmp_path)):
        with pytest.raises(UnknownFormat, match="kvcairn did not make it"):
            open_it()
    assert (tmp_path / "data.mdb").read_bytes() == b"precious"


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="no kvcairn data directory"):
        LmdbReader(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_data_file_that_is_no_database_is_refused_by_readers(tmp_path: Path) -> None:
    LmdbStore(tmp_path, map_bytes=MAP_BYTES).close()
    (tmp_path / "data.mdb").write_bytes(b"x" * 65536)
    with pytest.raises(StoreUnreadable, match="is damaged: meta page 0"):
        LmdbReader(tmp_path)


def test_a_directory_that_cannot_be_made_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnreadable, match="cannot be opened"):
        LmdbStore(tmp_path / "file" / "data", map_bytes=MAP_BYTES)


def test_the_generation_stays_and_differs_between_directories(tmp_path: Path) -> None:
    generations = []
    for name in ("a", "a", "b"):
        store = LmdbStore(tmp_path / name, map_bytes=MAP_BYTES)
        generations.append(store.identity.generation)
        store.close()
    assert generations[0] == generations[1] != generations[2]


def test_documents_outlive_a_restart(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    store.put_document("tenants", "a", b"{}")
    store.close()
    again = LmdbStore(tmp_path, map_bytes=MAP_BYTES)
    assert again.documents("tenants") == {"a": b"{}"}
    again.close()


def test_a_backup_goes_only_into_an_empty_directory(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "data", map_bytes=MAP_BYTES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(StorageError, match="is not empty"):
        store.backup(tmp_path / "full")
    store.close()


def test_nobody_else_can_read_a_backup_whatever_the_umask(tmp_path: Path) -> None:
    store, before = LmdbStore(tmp_path / "data", map_bytes=MAP_BYTES), os.umask(0)
    try:
        store.backup(tmp_path / "copy")
    finally:
        os.umask(before)
    store.close()
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("copy", "copy/data.mdb")]
    assert modes == [0o700, 0o600]


def test_the_default_capacity_is_half_of_what_is_free_and_counts_its_own_file_as_free(tiny_disk: Path) -> None:
    directory = tiny_disk / "not" / "there"
    half_bytes = default_capacity_bytes(directory)
    assert abs(half_bytes - (4 << 20)) < 64 << 10
    directory.mkdir(parents=True)
    (directory / "data.mdb").write_bytes(bytes(6 << 20))
    assert abs(default_capacity_bytes(directory) - half_bytes) < 64 << 10


def test_the_map_leaves_a_fifth_free_and_is_whole_pages() -> None:
    for capacity_bytes in (1, 10**9 + 7, 1 << 40):
        map_bytes = map_bytes_for(capacity_bytes)
        assert map_bytes % PAGE == 0
        assert capacity_bytes <= map_bytes * 8 // 10
