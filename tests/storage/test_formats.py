"""A data directory of an earlier format goes on as it is; one of a later format is refused by name."""

import json
import lzma
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lmdb
import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.directory import read_identity
from kvcairn_storage.errors import UnknownFormat
from kvcairn_storage.lmdb import LmdbReader, LmdbStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import SECONDS, make_chain
from service_samples import HISTORY, STATE, WINDOW, chain, chain_records, fingerprint, layout_document

GOLDEN = Path(__file__).parent / "golden" / "format_1"
MAP_BYTES = 64 << 20
DOCUMENT = layout_document(model="golden/format-1@1")
KEYS = chain(DOCUMENT, 3)
BLOCKS = chain_records(DOCUMENT, KEYS)
STATE_AT_2 = chain_records(DOCUMENT, KEYS, kind=STATE)[1]
WINDOW_OF_1 = chain_records(DOCUMENT, KEYS, kind=WINDOW)[0]
RECORDS = {
    **{(HISTORY, key): record for key, record in zip(KEYS, BLOCKS, strict=True)},
    (STATE, KEYS[1]): STATE_AT_2,
    (WINDOW, KEYS[0]): WINDOW_OF_1,
}
GENERATION = "4d950960a6b185defede59f9c2d37b69"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the directory that the service of format 1 wrote."""
    directory = tmp_path / "data"
    directory.mkdir()
    shutil.copy(GOLDEN / "kvcairn.json", directory)
    (directory / "data.mdb").write_bytes(lzma.decompress((GOLDEN / "data.mdb.xz").read_bytes()))
    return directory


def entry_row_bytes(directory: Path) -> Counter[int]:
    """How many rows of the table of entries have which length, read with lmdb alone."""
    with lmdb.open(str(directory), readonly=True, max_dbs=4, lock=False) as env, env.begin() as txn:
        return Counter(len(row) for _, row in txn.cursor(db=env.open_db(b"entries", txn=txn, create=False)))


def format_of(directory: Path) -> int:
    found: int = json.loads((directory / "kvcairn.json").read_text())["format"]
    return found


def test_the_golden_directory_is_one_of_format_1(old: Path) -> None:
    assert format_of(old) == 1
    assert entry_row_bytes(old) == {68: 5}


def test_every_record_of_format_1_is_served_byte_for_byte_by_a_writer_that_is_not_known(old: Path) -> None:
    records = LmdbStore(old, map_bytes=MAP_BYTES)
    store = PrefixStore(records, capacity_bytes=1 << 20)
    assert records.identity.generation == GENERATION
    found = {(int(key.kind), key.key): (records.get(key), entry) for key, entry in records.scan()}
    assert {name: data for name, (data, _) in found.items()} == RECORDS
    assert {entry.writer for _, entry in found.values()} == {"unknown"}
    assert {name: entry.uses for name, (_, entry) in found.items()} == {
        name: int(name[0] == HISTORY) for name in RECORDS
    }
    tenant = next(iter(records.scan()))[0].tenant
    run = store.longest_run(tenant=tenant, layout=fingerprint(DOCUMENT), keys=KEYS, block_tokens=8)
    assert run == (3, [16])
    assert store.check_integrity() == []
    store.close()


def test_what_is_stored_and_used_from_now_on_has_rows_of_format_2_among_the_old_ones(old: Path) -> None:
    records = LmdbStore(old, map_bytes=MAP_BYTES)
    store = PrefixStore(records, capacity_bytes=1 << 20)
    store.put([record._replace(writer="0123456789ab") for record in make_chain([b"n" * 32])]).result(SECONDS)
    state = next(key for key, _ in records.scan() if key.kind is Kind.STATE)
    assert store.touch([state]) == 1
    store.close()
    assert entry_row_bytes(old) == {68: 4, 69 + 7: 1, 69 + 12: 1}
    reader = LmdbReader(old)
    assert Counter(entry.writer for _, entry in reader.scan()) == {"unknown": 5, "0123456789ab": 1}
    assert {entry.uses for key, entry in reader.scan() if key == state} == {1}
    assert reader.check_integrity() == []
    reader.close()


def test_serving_a_directory_names_the_new_format_and_reading_beside_it_does_not(
    old: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = LmdbReader(old)
    reader.backup(tmp_path / "copy")
    reader.close()
    assert (format_of(old), format_of(tmp_path / "copy")) == (1, 2)
    LmdbStore(old, map_bytes=MAP_BYTES).close()
    assert (format_of(old), read_identity(old).generation) == (2, GENERATION)
    assert "data format 1 and has 2 now" in caplog.text
    caplog.clear()
    LmdbStore(old, map_bytes=MAP_BYTES).close()
    assert caplog.text == ""
    copy = LmdbReader(tmp_path / "copy")
    assert {(int(key.kind), key.key): copy.get(key) for key, _ in copy.scan()} == RECORDS
    copy.close()


@pytest.mark.parametrize("left", ["the new name written beside the old one", "the new name over old rows alone"])
def test_a_kill_in_the_middle_of_the_upgrade_leaves_a_directory_that_opens(old: Path, left: str) -> None:
    """Naming the format is one rename, and comes before any row; these are the two places where a kill can fall."""
    if left.startswith("the new name written"):
        (old / "kvcairn.tmp").write_text('{"format": 2, "gener')
    else:
        (old / "kvcairn.json").write_text(json.dumps({"format": 2, "generation": GENERATION}))
    store = LmdbStore(old, map_bytes=MAP_BYTES)
    assert (format_of(old), store.identity.generation, len(list(store.scan()))) == (2, GENERATION, 5)
    store.close()


def test_a_process_that_is_killed_while_it_opens_an_old_directory_loses_nothing(old: Path) -> None:
    opening = (
        "import os, signal, sys; from pathlib import Path; from kvcairn_storage import directory\n"
        "sys.addaudithook(lambda event, _: event == 'os.rename' and os.kill(os.getpid(), signal.SIGKILL))\n"
        "directory.DataDirectory(Path(sys.argv[1]))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", opening, old], env=environment, check=False)
    assert ended.returncode == -9, "it was killed as it was about to name the new format"
    assert (format_of(old), (old / "kvcairn.tmp").exists()) == (1, True)
    store = LmdbStore(old, map_bytes=MAP_BYTES)
    assert len(list(store.scan())) == 5
    store.close()


@pytest.mark.parametrize("number", [0, 3, 17])
def test_a_format_that_is_not_known_is_refused_by_name_and_left_as_it_is(old: Path, number: int) -> None:
    (old / "kvcairn.json").write_text(json.dumps({"format": number, "generation": GENERATION}))
    before = (old / "kvcairn.json").read_bytes(), (old / "data.mdb").read_bytes()
    for opening in (lambda: LmdbStore(old, map_bytes=MAP_BYTES), lambda: LmdbReader(old)):
        with pytest.raises(UnknownFormat, match=f"data format {number}, and this version of kvcairn reads 1 and 2"):
            opening()
    assert ((old / "kvcairn.json").read_bytes(), (old / "data.mdb").read_bytes()) == before
