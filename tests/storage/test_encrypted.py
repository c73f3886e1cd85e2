"""EncryptedStore: keeps the contract, keeps plain bytes off the disk, and takes nothing that was changed or moved."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_storage.encrypted import EncryptedStore
from kvcairn_storage.errors import CipherError, KeyLost
from kvcairn_storage.integrity import is_sound
from kvcairn_storage.keyring import KeyRing, key_id_of, parse_masters
from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.recent import Recent
from kvcairn_storage.store import Entry, Put, RecordKey
from kvcairn_storage.testing import SECONDS, RecordStoreContract, make_chain, make_put

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
MARKER = b"what nobody may read on the disk "
KEYS = [bytes([index + 1]) * 32 for index in range(3)]


class EverythingEncrypted(EncryptedStore):
    """For the contract, whose records name no key: each is encrypted, and its entry shows none."""

    def write(self, puts, deletes=()):  # type: ignore[no-untyped-def]
        named = [put._replace(entry=replace(put.entry, key_id=self._ring.current)) for put in puts]
        return super().write(named, deletes)

    def scan(self) -> Iterator[tuple[RecordKey, Entry]]:
        return iter([(key, replace(entry, key_id=b"")) for key, entry in super().scan()])


class TestTheContractWithEveryValueEncrypted(RecordStoreContract):
    @pytest.fixture(params=["memory", "lmdb"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EncryptedStore]:
        inner = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path, map_bytes=64 << 20)
        store = EverythingEncrypted(inner, KeyRing([NEW, OLD]))
        yield store
        store.close()


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


def puts(*, key_id: bytes = key_id_of(NEW), tenant: str = "t") -> list[Put]:
    made = [make_put(record) for record in make_chain(KEYS, tenant=tenant, payload=MARKER * 40)]
    return [put._replace(entry=replace(put.entry, key_id=key_id)) for put in made]


def written(inner: MemoryStore, ring: KeyRing, given: list[Put]) -> EncryptedStore:
    store = EncryptedStore(inner, ring)
    store.write(given).result(SECONDS)
    return store


def record_of(put: Put) -> bytes:
    return b"".join(bytes(part) for part in put.data)


def overwrite(inner: MemoryStore, key: RecordKey, value: bytes) -> None:
    entry = dict(inner.scan())[key]
    inner.write([Put(key, entry, [value])]).result(SECONDS)


def test_the_value_is_what_the_decision_says(inner: MemoryStore) -> None:
    """Taken apart with the library's own derivation, not with ours."""
    given = puts()
    written(inner, KeyRing([NEW]), given)
    value = inner.get(given[0].key) or b""
    magic, key_id, salt, nonce = struct.unpack("<4s8s12s12s", value[:36])
    assert (magic, key_id) == (b"ENC1", key_id_of(NEW))
    tenant_key = HKDFExpand(SHA256(), 32, b"kvcairn/encryption-tenant/1\0t").derive(NEW)
    mac = HMAC(tenant_key, SHA256())
    mac.update(b"kvcairn/encryption-value/1" + salt)
    place = b"\x01t" + bytes(range(32)) + b"\x01" + KEYS[0]
    assert AESGCM(mac.finalize()).decrypt(nonce, value[36:], value[:36] + place) == record_of(given[0])


def test_nothing_of_a_record_lies_there_and_equal_records_look_different(inner: MemoryStore) -> None:
    given = puts()
    store = written(inner, KeyRing([NEW]), given)
    first = [inner.get(put.key) or b"" for put in given]
    store.write(given).result(SECONDS)
    second = [inner.get(put.key) or b"" for put in given]
    for value in (*first, *second):
        assert MARKER[:8] not in value
        assert b"KVC1" not in value
    assert not set(first) & set(second)
    assert [store.get(put.key) for put in given] == [record_of(put) for put in given]


def test_a_value_has_the_length_that_its_entry_says(inner: MemoryStore) -> None:
    plain, encrypted = puts(key_id=b""), puts()
    for given in (plain, encrypted):
        written(inner, KeyRing([NEW]), given)
        assert [len(inner.get(put.key) or b"") for put in given] == [put.entry.value_bytes for put in given]
    assert encrypted[0].entry.value_bytes == plain[0].entry.value_bytes + 52


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 11, 12, 23, 24, 35, 36, 36 + HEADER_BYTES, -16, -1])
@pytest.mark.parametrize("bits", [0x01, 0x06, 0xFF])
def test_a_changed_byte_is_found_and_nothing_of_the_record_is_shown(inner: MemoryStore, at: int, bits: int) -> None:
    given = puts()
    store = written(inner, KeyRing([NEW, OLD]), given)
    value = bytearray(inner.get(given[1].key) or b"")
    value[at] ^= bits
    overwrite(inner, given[1].key, bytes(value))
    shown = store.get(given[1].key) or b""
    assert len(shown) == len(record_of(given[1])), "the framing of a response stays whole"
    assert not is_sound(given[1].key, given[1].entry, shown)
    assert MARKER[:8] not in shown
    with store.views([put.key for put in given]) as views:
        assert [bytes(view or b"") == record_of(put) for view, put in zip(views, given, strict=True)] == [
            True,
            False,
            True,
        ]
    (fault,) = store.check_integrity()
    assert KEYS[1].hex() in fault


@pytest.mark.parametrize("length", [0, 1, 36, 51, 100])
def test_a_value_that_is_cut_short_is_found(inner: MemoryStore, length: int) -> None:
    given = puts()
    store = written(inner, KeyRing([NEW]), given)
    overwrite(inner, given[0].key, (inner.get(given[0].key) or b"")[:length])
    assert not is_sound(given[0].key, given[0].entry, store.get(given[0].key) or b"")
    assert len(store.check_integrity()) == 1


def test_a_record_that_leaves_in_parts_is_decrypted_once_and_damage_is_found_all_the_same(inner: MemoryStore) -> None:
    given = puts()
    store = written(inner, KeyRing([NEW]), given)
    key = given[0].key

    def shown() -> object:
        with store.views([key]) as (view,):
            assert view is not None
            assert bytes(view) == record_of(given[0])
            return view.obj

    first = shown()
    assert shown() is first
    value = bytearray(inner.get(key) or b"")
    value[200] ^= 1
    overwrite(inner, key, bytes(value))
    assert not is_sound(key, given[0].entry, store.get(key) or b"")
    assert len(store.check_integrity()) == 1


def test_no_more_is_kept_of_what_was_decrypted_than_is_allowed() -> None:
    recent, made = Recent(total_bytes=100), []

    def make(name: bytes) -> bytes:
        made.append(name)
        return name * (101 if name == b"d" else 40)

    for name in (b"a", b"b", b"a", b"c", b"b", b"a", b"d", b"d"):
        assert recent.get(name, partial(make, name))[:1] == name
    assert made == [b"a", b"b", b"c", b"a", b"d", b"d"], "c displaces the oldest; d alone is too much"


def test_values_cannot_change_places_nor_tenants(inner: MemoryStore) -> None:
    mine, theirs = puts(), puts(tenant="other")
    store = written(inner, KeyRing([NEW]), [*mine, *theirs])
    values = [inner.get(put.key) or b"" for put in (*mine, *theirs)]
    overwrite(inner, mine[0].key, values[1])
    overwrite(inner, mine[1].key, values[0])
    overwrite(inner, mine[2].key, values[5])
    for put in mine:
        assert not is_sound(put.key, put.entry, store.get(put.key) or b"")
    assert len(store.check_integrity()) == 3


def test_every_key_reads_and_the_first_writes(inner: MemoryStore) -> None:
    given = puts(key_id=key_id_of(OLD))
    written(inner, KeyRing([OLD]), given)
    ring = KeyRing([NEW, OLD])
    store = EncryptedStore(inner, ring)
    assert (ring.current, ring.reads(key_id_of(OLD))) == (key_id_of(NEW), True)
    assert [store.get(put.key) for put in given] == [record_of(put) for put in given]
    assert store.check_integrity() == []


def test_without_its_key_a_value_is_bad_and_named_so(inner: MemoryStore) -> None:
    given = puts(key_id=key_id_of(OLD))
    written(inner, KeyRing([OLD]), given)
    ring = KeyRing([NEW])
    store = EncryptedStore(inner, ring)
    assert not is_sound(given[0].key, given[0].entry, store.get(given[0].key) or b"")
    assert f"encrypted with key {key_id_of(OLD).hex()}, which is not among the 1 given" in store.check_integrity()[0]
    assert (ring.lost, ring.reads(key_id_of(OLD))) == (set(), False)
    ring.note(key_id_of(OLD))
    assert ring.lost == {key_id_of(OLD)}
    with pytest.raises(KeyLost):
        ring.tenant_key(key_id_of(OLD), "t")


def test_a_write_with_a_key_that_is_gone_fails_and_keeps_nothing(inner: MemoryStore) -> None:
    store = EncryptedStore(inner, KeyRing([NEW]))
    assert isinstance(store.write(puts(key_id=key_id_of(OLD))).exception(SECONDS), CipherError)
    assert list(inner.scan()) == []


def test_writes_stay_in_order_whether_or_not_they_take_encrypting(inner: MemoryStore) -> None:
    store = EncryptedStore(inner, KeyRing([NEW]))
    (put, *_), (plain, *_) = puts(), puts(key_id=b"")
    large = put._replace(data=[record_of(put), bytes(8 << 20)])
    done = [store.write([large]), store.write([], [put.key]), store.write([large]), store.write([plain])]
    for each in done:
        each.result(SECONDS)
    assert store.get(put.key) == inner.get(put.key) == record_of(plain)


def test_the_ring_takes_other_keys_while_it_is_used(inner: MemoryStore) -> None:
    ring = KeyRing([OLD])
    store = written(inner, ring, given := puts(key_id=key_id_of(OLD)))
    assert ring.replace([NEW, OLD])
    assert not ring.replace([NEW, OLD])
    assert ring.current == key_id_of(NEW)
    assert store.get(given[0].key) == record_of(given[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file holds no key; a key is a line of hex, 64 digits"),
        ("00" * 31, "line 1 of the file has 31 bytes"),
        ("00" * 33, "line 1 of the file has 33 bytes"),
        (f"# first\n{'00' * 32}\nsecret", "line 3 of the file is no key"),
    ],
)
def test_keys_that_are_none_are_refused_and_not_repeated(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_masters(text, "the file")
    assert "secret" not in str(caught.value)


def test_keys_are_never_shown() -> None:
    assert repr(KeyRing([NEW])) == f"KeyRing({key_id_of(NEW).hex()})"
    assert NEW.hex() not in repr(KeyRing([NEW]))
    with pytest.raises(ValueError, match="32 bytes; found one of 4"):
        KeyRing([b"abcd"])
