"""Codecs against an oracle of plain Python: planes, what pays, and what comes back."""

import json
import random
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.codec import (
    CODEC_NAMES,
    PLANES,
    RAW,
    ZSTD,
    CodecName,
    decode_into,
    encode,
    from_planes,
    to_planes,
)
from kvcairn_protocol.errors import CodecError
from kvcairn_protocol.layout import Kind, Layout, Segment, parse_layout
from protocol_samples import ITEM_BYTES, Document, documents, history, layout, window


def planes_of(payload: bytes, parts: list[tuple[int, int]]) -> bytes:
    """parts: length and item size of each segment, in bytes. Plane j of a segment holds byte j of each of its items."""
    found, at = b"", 0
    for length, item in parts:
        segment = payload[at : at + length]
        found += b"".join(segment[plane::item] for plane in range(item))
        at += length
    return found


def parts_of(made: Layout, kind: Kind) -> list[tuple[int, int]]:
    return [(s.size_bytes, ITEM_BYTES[s.stream.dtype]) for s in made.segments(kind)]


def decoded(codec: int, data: bytes, segments: tuple[Segment, ...], *, raw_bytes: int) -> bytes:
    target = bytearray(raw_bytes)
    decode_into(memoryview(target), codec, data, segments)
    return bytes(target)


def single(dtype: str, *, items: int) -> tuple[Segment, ...]:
    """The one segment of a layout with a history row of so many items a token."""
    stream = history(tokens_per_row=1, row_shape=[items], dtype=dtype)
    return layout(block_tokens=1, streams=[stream, window()]).segments(Kind.HISTORY)


@given(documents(), st.sampled_from(list(Kind)), st.randoms(use_true_random=False))
def test_planes_hold_one_byte_of_each_item_stream_by_stream(made: Document, kind: Kind, rng: random.Random) -> None:
    found = parse_layout(json.dumps(made))
    payload = rng.randbytes(found.payload_bytes(kind))
    planes = bytes(to_planes(payload, found.segments(kind)))
    assert planes == planes_of(payload, parts_of(found, kind))
    target = bytearray(len(payload))
    from_planes(memoryview(target), planes, found.segments(kind))
    assert target == payload


@pytest.mark.parametrize(("dtype", "planes"), [
    ("float32", b"048c159d26ae37bf"), ("float16", b"02468ace13579bdf"), ("bfloat16", b"02468ace13579bdf"),
    ("int8", b"0123456789abcdef"), ("uint8", b"0123456789abcdef"), ("float8_e4m3fn", b"0123456789abcdef"),
    ("float8_e5m2", b"0123456789abcdef"),
])  # fmt: skip
def test_planes_of_each_dtype(dtype: str, planes: bytes) -> None:
    segments = single(dtype, items=16 // ITEM_BYTES[dtype])
    assert bytes(to_planes(b"0123456789abcdef", segments)) == planes


@given(documents(), st.sampled_from(CODEC_NAMES), st.binary(min_size=1, max_size=30))
def test_what_is_encoded_decodes_to_the_same_bytes(made: Document, codec: CodecName, seed: bytes) -> None:
    found = parse_layout(json.dumps(made))
    size = found.payload_bytes(Kind.STATE)
    payload = (seed * (size + 1))[:size]
    encoded = encode(payload, codec, found.segments(Kind.STATE))
    assert encoded.raw_bytes == size
    assert len(encoded.data) <= size
    assert decoded(encoded.codec, bytes(encoded.data), found.segments(Kind.STATE), raw_bytes=size) == payload


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("size", [4, 60_000, 300_000])
def test_what_does_not_pay_is_stored_raw_and_not_copied(codec: CodecName, size: int) -> None:
    noise = random.Random(1).randbytes(size)
    encoded = encode(noise, codec, single("float32", items=size // 4))
    assert encoded.codec == RAW
    assert isinstance(encoded.data, memoryview)
    assert encoded.data.obj is noise


@pytest.mark.parametrize(("codec", "number"), [("auto", ZSTD), ("zstd", ZSTD), ("shuffle-zstd", PLANES)])
@pytest.mark.parametrize("size", [400, 60_000, 300_000])
def test_what_pays_is_shrunk(codec: CodecName, number: int, size: int) -> None:
    encoded = encode(bytes(size), codec, single("float32", items=size // 4))
    if codec == "auto" and size < 131_072:
        assert encoded.codec == RAW  # a link is done with so little before decoding has begun
    else:
        assert encoded.codec == number
        assert len(encoded.data) < size // 10


@pytest.mark.parametrize("hundreds", [1400, 4000])
def test_auto_asks_for_more_than_a_few_percent(hundreds: int) -> None:
    rng = random.Random(2)
    barely = b"".join(rng.randbytes(95) + bytes(5) for _ in range(hundreds))
    segments = single("uint8", items=len(barely))
    assert encode(barely, "auto", segments).codec == RAW
    assert encode(barely, "zstd", segments).codec == ZSTD


def test_auto_leaves_alone_what_only_entropy_coding_shrinks() -> None:
    """Digits shrink to less than half, but decode more slowly than a fast link delivers them raw."""
    digits = bytes(random.Random(4).choices(b"01234567", k=400_000))
    segments = single("uint8", items=len(digits))
    assert encode(digits, "auto", segments).codec == RAW
    assert len(encode(digits, "zstd", segments).data) < len(digits) // 2


def test_auto_shrinks_a_payload_that_is_mostly_empty() -> None:
    rows = random.Random(5).randbytes(100_000) + bytes(300_000)
    encoded = encode(rows, "auto", single("uint8", items=len(rows)))
    assert encoded.codec == ZSTD
    assert 100_000 < len(encoded.data) < 120_000
    assert decoded(ZSTD, bytes(encoded.data), single("uint8", items=len(rows)), raw_bytes=len(rows)) == rows


def test_planes_pay_where_the_exponents_repeat() -> None:
    rng = random.Random(3)
    floats = b"".join(rng.randbytes(2) + b"\x80\x3f" for _ in range(50_000))
    segments = single("float32", items=50_000)
    plain, shuffled = (len(encode(floats, codec, segments).data) for codec in ("zstd", "shuffle-zstd"))
    assert shuffled < 0.55 * len(floats)
    assert shuffled < plain


@pytest.mark.parametrize("codec", ["raw", "zstd", "shuffle-zstd", "auto"])
def test_a_payload_may_be_any_buffer(codec: CodecName) -> None:
    segments = single("float32", items=100)
    expected = encode(bytes(400), codec, segments)
    buffers: list[Any] = [bytearray(400), memoryview(bytes(400)), memoryview(bytes(400)).cast("f")]
    for buffer in buffers:
        found = encode(buffer, codec, segments)
        assert (found.codec, bytes(found.data), found.raw_bytes) == (expected.codec, bytes(expected.data), 400)


def test_frames_are_what_any_zstd_reader_reads() -> None:
    encoded = encode(b"abcd" * 100, "zstd", single("uint8", items=400))
    assert zstandard.ZstdDecompressor().decompress(bytes(encoded.data)) == b"abcd" * 100


def test_an_unknown_codec_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(CodecError, match="auto, raw, zstd, shuffle-zstd"):
        encode(b"1234", "lz4", single("uint8", items=4))  # type: ignore[arg-type] # what is refused here


@pytest.mark.parametrize("codec", [-1, 3, 255])
def test_an_unknown_codec_number_is_refused(codec: int) -> None:
    with pytest.raises(CodecError, match="codec"):
        decoded(codec, b"1234", single("uint8", items=4), raw_bytes=4)


@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_raw_payload_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(CodecError, match="4 bytes"):
        decoded(RAW, bytes(size), single("uint8", items=4), raw_bytes=4)
