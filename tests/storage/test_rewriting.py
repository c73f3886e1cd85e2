"""Values written again with another key: nothing of the record changes, no room is taken unseen, nothing comes back."""

import random
from collections.abc import Iterator

import pytest

from kvcairn_storage.encrypted import EncryptedStore
from kvcairn_storage.keyring import KeyRing, key_id_of
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.rewriting import Rewritten
from kvcairn_storage.rows import pack_entry, unpack_entry
from kvcairn_storage.store import RecordKey
from kvcairn_storage.testing import SECONDS, ManualClock, make_chain, make_put, make_record

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PAGE, LMDB_BYTES, HEADER, ADDED = 4096, 16, 128, 52
KEYS = [bytes([index + 1]) * 32 for index in range(4)]


class Policy:
    """Ciphers whose tenants all write with one key, or with none."""

    has_lost = False

    def __init__(self, ring: KeyRing) -> None:
        self.ring, self.key_id = ring, b""

    def writes_with(self, tenant: str) -> bytes:  # noqa: ARG002 - see Ciphers
        return self.key_id

    def reads(self, key_id: bytes) -> bool:
        return self.ring.reads(key_id)

    def note(self, key_id: bytes) -> None:
        self.ring.note(key_id)


class Home:
    """A store over encrypted values over memory."""

    def __init__(self, *, capacity_bytes: int = 1 << 20) -> None:
        self.inner, self.ring, self.clock = MemoryStore(), KeyRing([NEW, OLD]), ManualClock()
        self.policy = Policy(self.ring)
        self.store = self._open(capacity_bytes)

    def _open(self, capacity_bytes: int) -> PrefixStore:
        records = EncryptedStore(self.inner, self.ring)
        return PrefixStore(records, capacity_bytes=capacity_bytes, clock=self.clock, ciphers=self.policy)

    def put(self, records: list[NewRecord]) -> list[str]:
        return [str(result.outcome) for result in self.store.put(records).result(SECONDS)]

    def value_bytes(self) -> int:
        """What the values take on a disk, in whole pages: counted from what is kept, not from entries."""
        sizes = (len(self.inner.get(key) or b"") for key, _ in self.inner.scan())
        return sum(-(-(LMDB_BYTES + size) // PAGE) * PAGE for size in sizes)


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home()
    yield made
    assert made.store.check_integrity() == []
    made.store.close()


def whole(record: NewRecord) -> bytes:
    return b"".join(bytes(part) for part in record.data)


@pytest.mark.parametrize("before", [b"", key_id_of(OLD)], ids=["plain", "the old key"])
def test_a_rewritten_record_is_what_it_was_under_another_key(home: Home, before: bytes) -> None:
    home.policy.key_id = before
    chain = make_chain(KEYS)
    home.put(chain)
    home.clock.advance(10)
    home.store.touch([chain[1].key])
    known, charged = home.store.entry(chain[1].key), home.store.charged_bytes
    home.clock.advance(10)
    assert home.store.rewriting.rewrite(chain[1].key, key_id=key_id_of(NEW)) is Rewritten.DONE
    assert known is not None
    known.key_id = key_id_of(NEW)
    assert home.store.entry(chain[1].key) == known
    assert dict(home.inner.scan())[chain[1].key] == known
    assert (home.inner.get(chain[1].key) or b"")[:12] == b"ENC1" + key_id_of(NEW)
    assert [home.store.get(record.key) for record in chain] == [whole(record) for record in chain]
    assert home.store.charged_bytes == charged
    assert home.store.rewriting.rewrite(chain[1].key, key_id=key_id_of(NEW)) is Rewritten.SKIPPED


def test_a_record_that_is_gone_does_not_come_back(home: Home) -> None:
    (record, *_) = chain = make_chain(KEYS)
    home.put(chain)
    home.store.delete(chain[3].key)
    assert home.store.rewriting.rewrite(chain[3].key, key_id=key_id_of(NEW)) is Rewritten.SKIPPED
    assert (home.store.get(chain[3].key), home.inner.get(chain[3].key)) == (None, None)
    assert home.store.get(record.key) == whole(record)


def test_a_record_that_is_deleted_right_after_is_gone_from_the_disk(home: Home) -> None:
    chain = make_chain(KEYS)
    home.put(chain)
    for record in reversed(chain):
        home.store.rewriting.rewrite(record.key, key_id=key_id_of(NEW))
        assert home.store.delete(record.key)
    assert list(home.inner.scan()) == []


def test_a_bad_record_is_left_as_it_is(home: Home) -> None:
    (record,) = make_chain(KEYS[:1])
    home.put([record])
    put = make_put(record)
    home.inner.write([put._replace(data=[whole(record)[:-1] + b"?"])]).result(SECONDS)
    assert home.store.rewriting.rewrite(record.key, key_id=key_id_of(NEW)) is Rewritten.SKIPPED
    home.inner.write([put]).result(SECONDS)


@pytest.mark.parametrize("spare_bytes", [0, ADDED - 1])
def test_a_value_that_would_take_one_more_page_is_dropped(home: Home, spare_bytes: int) -> None:
    record = make_record(key=KEYS[0], payload=bytes(PAGE - LMDB_BYTES - HEADER - spare_bytes))
    assert home.put([record]) == ["stored"]
    assert home.store.charged_bytes == PAGE
    assert home.store.rewriting.rewrite(record.key, key_id=key_id_of(NEW)) is Rewritten.GROWN
    assert home.store.charged_bytes == home.value_bytes() == 0
    home.policy.key_id = key_id_of(NEW)
    assert home.put([record]) == ["stored"]
    assert home.store.charged_bytes == home.value_bytes() == 2 * PAGE


def test_one_with_room_to_spare_is_not(home: Home) -> None:
    record = make_record(key=KEYS[0], payload=bytes(PAGE - LMDB_BYTES - HEADER - ADDED))
    home.put([record])
    assert home.store.rewriting.rewrite(record.key, key_id=key_id_of(NEW)) is Rewritten.DONE
    assert home.store.charged_bytes == home.value_bytes() == PAGE


def test_the_capacity_holds_to_the_byte_whatever_is_encrypted() -> None:
    home, choice = Home(capacity_bytes=40 * PAGE), random.Random(5)
    keys: list[RecordKey] = []
    for number in range(300):
        home.policy.key_id = choice.choice([b"", key_id_of(OLD), key_id_of(NEW)])
        size_bytes = (
            choice.choice([1, 2, 3]) * PAGE - LMDB_BYTES - HEADER - choice.choice([0, 1, ADDED - 1, ADDED, 999])
        )
        record = make_record(key=number.to_bytes(32, "big"), payload=choice.randbytes(size_bytes))
        assert home.put([record]) == ["stored"]
        keys.append(record.key)
        home.store.rewriting.rewrite(choice.choice(keys), key_id=key_id_of(NEW))
        assert home.value_bytes() == home.store.charged_bytes <= 40 * PAGE
    assert home.store.charged_bytes > 35 * PAGE
    home.store.close()


def test_an_entry_s_key_survives_the_way_into_bytes_and_back() -> None:
    entry = make_put(make_record(key=KEYS[0])).entry
    plain = pack_entry(entry)
    entry.key_id = b"8 bytes!"
    row = pack_entry(entry)
    assert row == plain + b"8 bytes!"
    assert unpack_entry(row) == entry
    assert unpack_entry(row).key_id is unpack_entry(row).key_id, "one object for all records of a key"
    for broken in (row[:-1], row + b"?", plain + b"1"):
        with pytest.raises(ValueError, match="cannot be a writer's id"):
            unpack_entry(broken)
