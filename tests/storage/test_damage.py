"""Flipped bits in a data file that is at rest: no wrong byte, no end of the process, and no store that stays down.

The long form of the first test is tests/torture/disk; structure and strays are what makes it hold.
"""

import random
import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest

from damage import DOCUMENT, MAP_BYTES, PAGE, compact, fill, flip, survey, tree_pages
from kvcairn_storage.directory import DAMAGED_NAME, SUSPECT_NAME, read_identity
from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.lmdb import LmdbReader, LmdbStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import RecordKey
from kvcairn_storage.structure import structure_fault
from kvcairn_storage.testing import SECONDS, make_put, make_record

FLIPS = 24
SEED = 20


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[RecordKey, bytes]]:
    """A sound directory, and what is in it."""
    directory = tmp_path_factory.mktemp("sound") / "data"
    return directory, fill(directory)


@pytest.fixture
def copied(tmp_path: Path, sound: tuple[Path, dict[RecordKey, bytes]]) -> tuple[Path, dict[RecordKey, bytes]]:
    compact(sound[0], tmp_path / "data")
    return tmp_path / "data", sound[1]


def test_whatever_bit_is_flipped_at_rest_the_store_opens_and_no_answer_is_wrong(sound, tmp_path):
    made, journal = sound
    chance, verdicts = random.Random(SEED), Counter()
    compact(made, tmp_path / "compact")
    directory = tmp_path / "compact"
    pages = [0, 1, *tree_pages((directory / "data.mdb").read_bytes())]
    for number in range(FLIPS):
        place = tmp_path / str(number)
        shutil.copytree(directory, place)
        at = chance.choice(pages) * PAGE + chance.randrange(PAGE)
        flip(place / "data.mdb", at=at, bit=chance.randrange(8))
        found = survey(place, journal)
        assert found.wrong == 0, f"flip {number} at {at}: {found}"
        verdicts[found.verdict] += 1
        shutil.rmtree(place)
    assert verdicts["misses"] + verdicts["begun anew"] > 0
    assert verdicts["begun anew"] < FLIPS / 2


def places_of(data: bytes, what: bytes) -> list[int]:
    """Where these bytes lie in the file's tree pages."""
    tree, found, at = set(tree_pages(data)), [], data.find(what)
    while at >= 0:
        if at // PAGE in tree:
            found.append(at)
        at = data.find(what, at + 1)
    return found


@pytest.mark.parametrize("table", ["both", "one"])
def test_a_record_whose_key_was_flipped_is_a_miss_and_its_row_is_dropped(copied, table):
    directory, journal = copied
    key = list(journal)[100]
    places = places_of((directory / "data.mdb").read_bytes(), key.key)
    for at in places if table == "both" else places[:1]:
        flip(directory / "data.mdb", at=at, bit=7)
    assert structure_fault(directory / "data.mdb") is None
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    others = [each for each in journal if each != key]
    assert store.get(key) is None
    assert all(store.get(each) == journal[each] for each in others)
    assert len(dict(store.scan())) == store.count()
    assert key not in dict(store.scan())
    store.close()


def test_a_document_that_was_flipped_is_not_there(copied):
    directory, _ = copied
    for at in places_of((directory / "data.mdb").read_bytes(), DOCUMENT):
        flip(directory / "data.mdb", at=at + 7, bit=0)
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    assert store.documents("tenants") == {}
    assert store.get_document("tenants", "default") is None
    store.close()


def test_a_record_whose_entry_was_flipped_is_found_by_reading_it(copied):
    """The entry says another length than the record has: whoever promised that length could never send it."""
    directory, journal = copied
    key = list(journal)[100]
    entry = struct.pack("<QQQ", 128, 5000, 5000)  # block_tokens, raw_bytes, stored_bytes
    content = (directory / "data.mdb").read_bytes()
    (row,) = [at for at in places_of(content, entry) if 0 <= at - content.rfind(key.key, 0, at) < 128]
    flip(directory / "data.mdb", at=row + 16, bit=3)
    store = PrefixStore(LmdbStore(directory, map_bytes=MAP_BYTES), capacity_bytes=32 << 20)
    found = store.entry(key)
    assert found is not None
    assert (found.raw_bytes, found.stored_bytes) == (5000, 5000 ^ 8)
    assert store.quarantine(key)
    assert not any(store.quarantine(each) for each in journal)
    assert store.exists([key]) == [False]
    store.close()


def test_a_value_that_lmdb_can_neither_read_nor_free_ends_writing_and_the_next_start_begins_anew(copied):
    """The head of its pages was flipped: nothing reads those at an ordinary start, for there is one in every record."""
    directory, journal = copied
    key = list(journal)[100]
    at = (directory / "data.mdb").read_bytes().index(journal[key]) - 16
    flip(directory / "data.mdb", at=at + 14, bit=6)  # how many pages it has, made 4 million more
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    assert (store.count(), store.fault) == (len(journal), None)
    with pytest.raises(StoreUnreadable):
        store.write([], [key]).result(SECONDS)
    assert store.fault is not None
    others = [each for each in journal if each != key]
    assert all(store.get(each) == journal[each] for each in others)
    store.close()
    again = LmdbStore(directory, map_bytes=MAP_BYTES)
    assert (again.count(), again.fault, again.documents("tenants")) == (0, None, {"default": DOCUMENT})
    again.write([make_put(make_record(key=key.key))]).result(SECONDS)
    again.close()
    assert (directory / DAMAGED_NAME).exists()
    assert not (directory / SUSPECT_NAME).exists()


def test_the_table_of_readers_has_its_disk_space_from_the_start(copied):
    """LMDB maps it: on a full disk a page of it that was never written would end the process."""
    directory, _ = copied
    (directory / "lock.mdb").unlink(missing_ok=True)
    LmdbStore(directory, map_bytes=MAP_BYTES).close()
    status = (directory / "lock.mdb").stat()
    assert status.st_blocks * 512 >= status.st_size > PAGE


def test_where_a_tree_is_damaged_the_file_is_set_aside_the_documents_stay_and_the_generation_is_new(copied, caplog):
    directory, journal = copied
    generation = read_identity(directory).generation
    old = (directory / "data.mdb").read_bytes()
    (place, *_) = places_of(old, next(iter(journal)).key)
    flip(directory / "data.mdb", at=place // PAGE * PAGE + 12, bit=3)  # where its nodes' pointers end
    with pytest.raises(StoreUnreadable, match=r"is damaged: page \d+"):
        LmdbReader(directory)
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    assert (store.count(), store.documents("tenants")) == (0, {"default": DOCUMENT})
    assert store.identity.generation != generation
    store.close()
    assert len((directory / DAMAGED_NAME).read_bytes()) == len(old)
    assert "its records are lost" in caplog.text
    assert survey(directory, {}).has_document


def test_a_meta_page_that_was_flipped_is_found_before_lmdb_believes_it(copied):
    directory, journal = copied
    flip(directory / "data.mdb", at=PAGE + 16 + 24, bit=4)  # the size of a page
    with pytest.raises(StoreUnreadable, match="meta page"):
        LmdbReader(directory)
    assert survey(directory, journal).verdict == "begun anew"
