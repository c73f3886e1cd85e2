"""Damage to data files, from what LMDB's own format page says and nothing of ours: bits flipped, and what is left.

`survey` is the claim of all of these tests: whatever was flipped, a store that is opened on the file answers each key
with the bytes that were stored under it, or with nothing, or with bytes that their own checksum gives away.
"""

import random
import struct
from pathlib import Path
from typing import NamedTuple

import xxhash

from kvcairn_storage.errors import StorageError
from kvcairn_storage.lmdb import LmdbReader, LmdbStore
from kvcairn_storage.store import RecordKey
from kvcairn_storage.testing import SECONDS, make_put, make_record

PAGE = 4096
MAP_BYTES = 64 << 20
LEAF, BRANCH, LARGE = 0x02, 0x01, 0x04
DOCUMENT = b'{"id":"x"}'


def fill(directory: Path, *, records: int = 300, payload_bytes: int = 5000) -> dict[RecordKey, bytes]:
    """A store with records, a document and free pages; returns its journal: what was stored under each key."""
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    journal = {}
    for start in range(0, records, 50):
        some = range(start, start + 50)
        batch = [make_record(key=_key(index), payload=_payload(index, payload_bytes)) for index in some]
        store.write([make_put(each) for each in batch]).result(SECONDS)
        journal.update({each.key: b"".join(bytes(part) for part in each.data) for each in batch})
    store.put_document("tenants", "default", DOCUMENT)
    for gone in list(journal)[::7]:
        store.write([], [gone]).result(SECONDS)
        del journal[gone]
    store.close()
    return journal


def compact(source: Path, target: Path) -> None:
    """The same store without old pages, so that whatever is found in the file is what is read."""
    reader = LmdbReader(source)
    reader.backup(target)
    reader.close()


def _key(index: int) -> bytes:
    return xxhash.xxh3_128(b"%d" % index).digest() * 2


def _payload(index: int, size: int) -> bytes:
    return random.Random(index).randbytes(size)


def tree_pages(data: bytes) -> list[int]:
    """The numbers of pages that hold nodes of trees, old ones that are free now included."""
    found, at = [], 2
    while at < len(data) // PAGE:
        flags, pages = struct.unpack_from("<H", data, at * PAGE + 10)[0], 1
        if flags in (LEAF, BRANCH):
            found.append(at)
        elif flags == LARGE:
            pages = max(1, struct.unpack_from("<I", data, at * PAGE + 12)[0])
        at += pages
    return found


def flip(data: Path, *, at: int, bit: int) -> None:
    """Flip one bit of the file, in place."""
    with data.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


class Survey(NamedTuple):
    """What a damaged store answered. wrong: answers that neither key nor checksum gives away."""

    right: int
    missing: int
    bad: int
    wrong: int
    refused_writes: int
    has_document: bool

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "wrong"
        if not self.right:
            return "begun anew"
        return "misses" if self.missing or self.bad or self.refused_writes else "untouched"


def survey(directory: Path, journal: dict[RecordKey, bytes]) -> Survey:
    """Open a store on the directory, read all, write over some, read all again."""
    store = LmdbStore(directory, map_bytes=MAP_BYTES)
    try:
        before = [judge(store, key, {stored}) for key, stored in journal.items()]
        allowed = {key: {stored} for key, stored in journal.items()}
        refused = sum(not _replace(store, key, allowed[key]) for key in list(journal)[::50])
        after = [judge(store, key, may_be) for key, may_be in allowed.items()]
        document = store.get_document("tenants", "default")
    finally:
        store.close()
    wrong = (before + after).count("wrong") + (document not in (None, DOCUMENT))
    counts = [before.count(each) for each in ("right", "missing", "bad")]
    return Survey(*counts, wrong, refused, document is not None)


def judge(store: LmdbStore, key: RecordKey, may_be: set[bytes]) -> str:
    """What a reader that asked for the key would make of the answer: right, missing, bad or wrong."""
    try:
        found = store.get(key)
    except StorageError:
        return "bad"
    if found is None:
        return "missing"
    if found in may_be:
        return "right"
    is_sealed = found[112:128] == xxhash.xxh3_128(found[:112] + found[128:]).digest()
    return "wrong" if is_sealed and found[64:96] == key.key else "bad"


def _replace(store: LmdbStore, key: RecordKey, may_be: set[bytes]) -> bool:
    """Store another record under the key; whether that was acknowledged."""
    record = make_record(key=key.key, payload=b"another")
    packed = b"".join(bytes(part) for part in record.data)
    may_be.add(packed)
    try:
        store.write([make_put(record)], [key]).result(SECONDS)
    except StorageError:
        return False
    may_be &= {packed}
    return True
