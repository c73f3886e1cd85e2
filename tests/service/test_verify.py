"""Records that went bad where nothing on the way in could see it: found by reading, and served no more."""

import hashlib
from collections.abc import Iterator

import pytest
import zstandard

from kvcairn_protocol.layout import parse_layout
from kvcairn_protocol.record import HEADER_BYTES, parse_header
from kvcairn_service.verify import is_verified, quarantine_if_bad
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, Outcome, PrefixStore
from service_samples import HISTORY, canonical, chain, layout_document, record

DOCUMENT = layout_document(history_bytes=4096)
LAYOUT = parse_layout(canonical(DOCUMENT))
(KEY,) = chain(DOCUMENT, 1)
RAW = hashlib.sha256(KEY).digest() * 128


@pytest.fixture
def store() -> Iterator[PrefixStore]:
    opened = PrefixStore(MemoryStore(), capacity_bytes=1 << 20)
    yield opened
    opened.close()


def keep(store: PrefixStore, data: bytes) -> NewRecord:
    """Store a record past the checks of an upload."""
    header = parse_header(data[:HEADER_BYTES], max_raw_bytes=4096)
    new = NewRecord("tenant", header, DOCUMENT["block_tokens"], (data,))
    assert store.put([new]).result()[0].outcome is Outcome.STORED
    return new


def undecodable(codec: int) -> bytes:
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(RAW))
    frame[-1] ^= 1  # the frame's own checksum: its header is right, and only decoding finds it
    return record(DOCUMENT, HISTORY, KEY, position=8, payload=bytes(frame), codec=codec, raw_bytes=4096)


@pytest.mark.parametrize("codec", [1, 2])
def test_what_does_not_decode_is_quarantined_and_replaced_by_the_next_store(store: PrefixStore, codec: int) -> None:
    bad = keep(store, undecodable(codec))
    assert quarantine_if_bad(store, bad.key, LAYOUT)
    assert store.exists([bad.key]) == [False]
    good = record(DOCUMENT, HISTORY, KEY, position=8, payload=RAW)
    keep(store, good)
    assert is_verified(store, bad.key, LAYOUT)
    assert store.get(bad.key) == good


def test_reading_quarantines_what_does_not_decode(store: PrefixStore) -> None:
    bad = keep(store, undecodable(1))
    assert not is_verified(store, bad.key, LAYOUT)
    assert store.exists([bad.key]) == [False]


def test_a_good_record_stays(store: PrefixStore) -> None:
    good = keep(store, record(DOCUMENT, HISTORY, KEY, position=8, payload=RAW))
    assert not quarantine_if_bad(store, good.key, LAYOUT)
    assert store.exists([good.key]) == [True]
