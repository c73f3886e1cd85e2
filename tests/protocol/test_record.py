"""Records: round trips, and no bit of one that may change unnoticed."""

import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.codec import CODEC_NAMES, CodecName, decode_into, encode
from kvcairn_protocol.errors import RecordError
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import (
    HEADER_BYTES,
    Header,
    check_asked,
    encode_record,
    missing_record,
    parse_header,
    verify_record,
)
from protocol_samples import Document, documents, layout
from protocol_samples import layout as small_layout

KEY, PARENT = bytes(range(32)), bytes(range(16, 32))


def written(kind: Kind = Kind.STATE, *, payload: bytes = b"\x01" * 36, codec: CodecName = "raw") -> bytes:
    made = layout()
    encoded = encode(payload, codec, made.segments(kind))
    header, body = encode_record(made, kind, key=KEY, position=16, parent=PARENT, payload=encoded)
    return header + bytes(body)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[Document, Kind, bytes]:
    """A layout, a kind that it has records of, and a payload that may or may not compress."""
    made = draw(documents())
    sizes = {kind: small_layout(**made).payload_bytes(kind) for kind in Kind}
    kind = draw(st.sampled_from([kind for kind in Kind if sizes[kind]]))
    seed = draw(st.binary(min_size=1, max_size=40))
    return made, kind, (seed * sizes[kind])[: sizes[kind]]


@given(payloads(), st.sampled_from(CODEC_NAMES), st.binary(min_size=32, max_size=32), st.integers(1, 2**40))
def test_what_is_written_reads_back(
    made: tuple[Document, Kind, bytes], codec: CodecName, key: bytes, blocks: int
) -> None:
    found, kind, payload = layout(**made[0]), made[1], made[2]
    position = blocks * found.block_tokens if found.chained else 0
    parent = b"p" * 16 if found.chained and blocks > 1 else bytes(16)
    encoded = encode(payload, codec, found.segments(kind))
    head, body = encode_record(found, kind, key=key, position=position, parent=parent, payload=encoded)
    header = verify_record(head + bytes(body), found, max_raw_bytes=len(payload))
    assert (header.kind, header.key, header.position, header.parent) == (kind, key, position, parent)
    target = bytearray(header.raw_bytes)
    decode_into(memoryview(target), header.codec, body, found.segments(kind))
    assert target == payload


def test_the_header_is_where_the_wire_page_puts_it() -> None:
    record = written()
    assert struct.unpack_from("<4sBBHQQQ", record) == (b"KVC1", 2, 0, 0, 16, 36, 36)
    assert (record[32:64], record[64:96], record[96:112]) == (layout().fingerprint, KEY, PARENT)
    assert record[112:128] == xxhash.xxh3_128(record[:112] + record[128:]).digest()
    assert record[128:] == b"\x01" * 36


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_no_bit_of_a_record_can_change_unnoticed(codec: CodecName) -> None:
    record = written(codec=codec)
    for bit in range(len(record) * 8):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            verify_record(flipped, layout(), max_raw_bytes=1000)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_no_record_is_accepted_shorter_or_longer_than_it_is(codec: CodecName) -> None:
    record = written(codec=codec)
    for length in range(len(record)):
        with pytest.raises(RecordError):
            verify_record(record[:length], layout(), max_raw_bytes=1000)
    with pytest.raises(RecordError):
        verify_record(record + b"\0", layout(), max_raw_bytes=1000)


def test_no_bit_of_a_missing_answer_can_become_a_record() -> None:
    answer = missing_record(layout(), Kind.STATE, key=KEY)
    for bit in range(len(answer) * 8):
        flipped = bytearray(answer)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            verify_record(flipped, layout(), max_raw_bytes=1000)


def test_a_missing_answer_says_what_was_asked_and_nothing_else() -> None:
    answer = missing_record(layout(), Kind.WINDOW, key=KEY)
    header = parse_header(answer, max_raw_bytes=0)
    assert header.missing
    assert header.record_bytes == len(answer) == HEADER_BYTES
    assert struct.unpack_from("<4sBBHQQQ", answer) == (b"KVC1", 3, 0, 1, 0, 0, 0)
    assert answer[96:112] == bytes(16)
    assert answer[112:] == xxhash.xxh3_128(answer[:112]).digest()
    check_asked(header, kind=Kind.WINDOW, key=KEY, fingerprint=layout().fingerprint, position=16)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_as_records(data: bytes) -> None:
    for record in (data, b"KVC1" + data, written()[:32] + data):
        with pytest.raises(RecordError):
            verify_record(record, layout(), max_raw_bytes=1000)


def test_views_and_bytearrays_read_like_bytes() -> None:
    record = written(codec="shuffle-zstd")
    expected = verify_record(record, layout(), max_raw_bytes=36)
    assert verify_record(bytearray(record), layout(), max_raw_bytes=36) == expected
    assert verify_record(memoryview(b"xx" + record)[2:], layout(), max_raw_bytes=36) == expected


@pytest.mark.parametrize("field", ["fingerprint", "key", "parent", "checksum"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_field_of_the_wrong_length_is_never_padded_or_cut(field: str, change: int) -> None:
    fields: dict[str, Any] = {"fingerprint": bytes(32), "key": bytes(32), "parent": bytes(16), "checksum": bytes(16)}
    fields[field] = bytes(len(fields[field]) + change)
    with pytest.raises(ValueError, match="have"):
        Header(kind=Kind.STATE, position=0, raw_bytes=0, stored_bytes=0, **fields)
