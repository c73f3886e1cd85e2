"""Keys and entries survive the way into bytes and back; rows of one layout lie together; older rows are read."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.layout import Kind
from kvcairn_storage.rows import pack_entry, pack_key, unpack_entry, unpack_key
from kvcairn_storage.store import Entry, RecordKey

DIGESTS = st.binary(min_size=32, max_size=32)
TENANTS = st.text(st.characters(codec="utf-8"), max_size=60)
KEYS = st.builds(RecordKey, TENANTS, DIGESTS, st.sampled_from(Kind), DIGESTS)
COUNTS = st.integers(0, 2**53 - 1)
TIMES = st.floats(0, 1e12)
USES = st.integers(0, 2**32 - 1)
WRITERS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=32)
ENTRIES = st.builds(
    Entry, COUNTS, st.binary(min_size=16, max_size=16), COUNTS, COUNTS, COUNTS, TIMES, TIMES, USES, WRITERS
)
FORMAT_1_ROW = bytes.fromhex(
    "0100000000000000" + "50" * 16 + "020000000000000003000000000000000400000000000000"
    "0000000000000000" + "000000000000f07f" + "05000000"
)


@given(KEYS)
def test_a_key_comes_back(key: RecordKey) -> None:
    assert unpack_key(pack_key(key)) == key


@given(KEYS, KEYS)
def test_two_keys_never_share_a_row(first: RecordKey, second: RecordKey) -> None:
    assert (pack_key(first) == pack_key(second)) == (first == second)


@given(ENTRIES)
def test_an_entry_comes_back(entry: Entry) -> None:
    assert unpack_entry(pack_entry(entry)) == entry


def test_the_rows_are_as_documented() -> None:
    key = RecordKey("ab", b"L" * 32, Kind.STATE, b"K" * 32)
    assert pack_key(key) == b"\x02ab" + b"L" * 32 + b"\x02" + b"K" * 32
    entry = Entry(1, b"P" * 16, 2, 3, 4, 0.0, math.inf, 5, "ab12")
    assert pack_entry(entry).hex() == FORMAT_1_ROW.hex() + "04" + b"ab12".hex()
    assert pack_entry(Entry(1, b"P" * 16, 2, 3, 4, 0.0, math.inf, 5)) == FORMAT_1_ROW + b"\7unknown"


def test_a_row_of_format_1_is_an_entry_whose_writer_is_not_known() -> None:
    assert unpack_entry(FORMAT_1_ROW) == Entry(1, b"P" * 16, 2, 3, 4, 0.0, math.inf, 5, "unknown")


@pytest.mark.parametrize("tail", [b"\x01", b"\x00a", b"\x02a", b"\x01ab", b"\x02\xc3\xa9"])
def test_a_tail_that_is_no_writer_is_refused(tail: bytes) -> None:
    with pytest.raises(ValueError, match=r"writer's id|'ascii' codec"):
        unpack_entry(FORMAT_1_ROW + tail)


def test_a_row_that_was_cut_is_refused() -> None:
    with pytest.raises(struct.error):
        unpack_entry(FORMAT_1_ROW[:-1])


def test_all_entries_of_a_writer_share_one_string() -> None:
    rows = [pack_entry(Entry(at, bytes(16), 2, 3, 4, 0.0, 0.0, 0, "0123456789ab")) for at in range(2)]
    first, second = map(unpack_entry, rows)
    assert first.writer is second.writer


@pytest.mark.parametrize("writer", ["x" * 33, "é"])
def test_a_writer_that_does_not_fit_is_refused(writer: str) -> None:
    with pytest.raises(ValueError, match=r"at most 32 bytes|'ascii' codec"):
        pack_entry(Entry(1, bytes(16), 2, 3, 4, 0.0, 0.0, 0, writer))


@pytest.mark.parametrize(
    "key",
    [
        RecordKey("x" * 256, bytes(32), Kind.STATE, bytes(32)),
        RecordKey("x", bytes(31), Kind.STATE, bytes(32)),
        RecordKey("x", bytes(32), Kind.STATE, bytes(33)),
    ],
)
def test_a_key_that_does_not_fit_is_refused(key: RecordKey) -> None:
    with pytest.raises(ValueError, match="at most 255 bytes"):
        pack_key(key)
