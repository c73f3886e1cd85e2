"""What a compressed payload may look like: one whole zstd frame, bounded before it is decoded."""

import random
import tracemalloc

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from kvcairn_protocol.codec import ZSTD, check_frame, decode_into
from kvcairn_protocol.errors import CodecError
from kvcairn_protocol.layout import Kind, Segment
from protocol_samples import history, layout, window

MAGIC = b"\x28\xb5\x2f\xfd"
TEXT = b"one window, many layers; " * 8


def segments(size: int) -> tuple[Segment, ...]:
    made = layout(block_tokens=1, streams=[history(tokens_per_row=1, row_shape=[size]), window()])
    return made.segments(Kind.HISTORY)


def run(byte: int, length: int, *, is_last: bool) -> bytes:
    """A block that repeats a byte."""
    return (is_last | 1 << 1 | length << 3).to_bytes(3, "little") + bytes([byte])


def frame(blocks: bytes, *, content_bytes: int) -> bytes:
    """A single-segment frame with a content size of 8 bytes."""
    return MAGIC + b"\xe0" + content_bytes.to_bytes(8, "little") + blocks


def windowed(blocks: bytes, *, content_bytes: int, log: int, eighths: int = 0) -> bytes:
    """A frame with a window of 2^log · (1 + eighths / 8) bytes and a content size of 4 bytes."""
    return MAGIC + b"\x80" + bytes([(log - 10) << 3 | eighths]) + content_bytes.to_bytes(4, "little") + blocks


def accepted(data: bytes, *, raw_bytes: int) -> bytes:
    check_frame(ZSTD, data, raw_bytes=raw_bytes)
    target = bytearray(raw_bytes)
    decode_into(memoryview(target), ZSTD, data, segments(raw_bytes))
    return bytes(target)


def refused(data: bytes, match: str, *, raw_bytes: int) -> None:
    with pytest.raises(CodecError, match=match):
        check_frame(ZSTD, data, raw_bytes=raw_bytes)
    with pytest.raises(CodecError, match=match):
        decode_into(memoryview(bytearray(raw_bytes)), ZSTD, data, segments(raw_bytes))


@given(data=st.binary(min_size=1, max_size=3000), level=st.integers(-5, 19), checksum=st.booleans())
def test_every_frame_of_every_level_is_read_with_and_without_its_own_checksum(
    *, data: bytes, level: int, checksum: bool
) -> None:
    made = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(data)
    assert accepted(made, raw_bytes=len(data)) == data


def test_a_frame_of_many_blocks_is_read() -> None:
    data = random.Random(1).randbytes(700_000) + bytes(700_000)
    assert accepted(zstandard.ZstdCompressor(level=1).compress(data), raw_bytes=len(data)) == data
    streamed = zstandard.ZstdCompressor().compressobj(size=len(data))
    pieces = [streamed.compress(data[at : at + 5000]) + streamed.flush(1) for at in range(0, len(data), 5000)]
    assert accepted(b"".join(pieces) + streamed.flush(), raw_bytes=len(data)) == data


def test_a_frame_must_say_its_content_size() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    refused(silent, "content size", raw_bytes=len(TEXT))


@pytest.mark.parametrize("off", [-1, 1, 1 << 40])
def test_a_frame_of_another_content_size_is_refused(off: int) -> None:
    good = frame(run(7, 50, is_last=True), content_bytes=50)
    assert accepted(good, raw_bytes=50) == b"\x07" * 50
    refused(frame(run(7, 50, is_last=True), content_bytes=50 + off), "content size", raw_bytes=50)


def test_a_frame_that_names_a_dictionary_is_refused() -> None:
    samples: list[bytes | bytearray | memoryview] = [TEXT[at:] + bytes([at]) for at in range(150)]
    trained = zstandard.train_dictionary(1024, samples)
    refused(zstandard.ZstdCompressor(dict_data=trained).compress(TEXT), "dictionary", raw_bytes=len(TEXT))


def test_a_window_reaches_8_mib_and_no_further() -> None:
    block = run(7, 50, is_last=True)
    assert accepted(windowed(block, content_bytes=50, log=23), raw_bytes=50) == b"\x07" * 50
    refused(windowed(block, content_bytes=50, log=23, eighths=1), "window", raw_bytes=50)
    refused(windowed(block, content_bytes=50, log=31), "window", raw_bytes=50)


def test_a_single_segment_beyond_8_mib_counts_as_its_own_window() -> None:
    size = (8 << 20) + 1
    refused(frame(run(7, 1, is_last=True), content_bytes=size), "window", raw_bytes=size)


@pytest.mark.parametrize("extra", [b"\0", MAGIC, b"\x50\x2a\x4d\x18\x01\0\0\0x"])
def test_bytes_after_the_frame_are_refused(extra: bytes) -> None:
    made = zstandard.ZstdCompressor().compress(TEXT)
    refused(made + extra, "one whole frame", raw_bytes=len(TEXT))


def test_a_second_frame_is_refused_also_where_the_sizes_add_up() -> None:
    half = zstandard.ZstdCompressor().compress(TEXT)
    refused(half + half, "one whole frame", raw_bytes=len(TEXT))
    refused(half + half, "content size", raw_bytes=2 * len(TEXT))


def test_a_skippable_frame_is_refused() -> None:
    refused(b"\x50\x2a\x4d\x18\x08\0\0\0" + b"x" * 8, "skippable", raw_bytes=8)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_truncated_frame_is_refused_wherever_it_ends(*, checksum: bool) -> None:
    made = zstandard.ZstdCompressor(write_checksum=checksum).compress(TEXT)
    for length in range(len(made)):
        refused(made[:length], "frame", raw_bytes=len(TEXT))


@given(st.binary(max_size=200), st.integers(1, 300))
@example(b"", 1)
def test_garbage_is_refused(data: bytes, raw_bytes: int) -> None:
    for garbage in (data, MAGIC + data):
        with pytest.raises(CodecError):
            decode_into(memoryview(bytearray(raw_bytes)), ZSTD, garbage, segments(raw_bytes))


def test_a_frame_that_decodes_to_more_or_less_than_it_says_is_refused_when_decoded() -> None:
    for length in (49, 51, 100_000):
        lying = frame(run(7, length, is_last=True), content_bytes=50)
        with pytest.raises(CodecError, match="decode"):
            accepted(lying, raw_bytes=50)


def test_a_bomb_is_refused_before_anything_is_allocated_for_it() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    endless = frame(run(0, 1 << 17, is_last=False) * 100, content_bytes=1 << 62)
    tracemalloc.start()
    try:
        refused(bomb, "content size", raw_bytes=1000)
        refused(endless, "content size", raw_bytes=1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_millions_of_empty_blocks_are_not_walked() -> None:
    empty = (0).to_bytes(3, "little")
    assert accepted(frame(empty * 15 + run(7, 50, is_last=True), content_bytes=50), raw_bytes=50)
    refused(frame(empty * 16 + run(7, 50, is_last=True), content_bytes=50), "at most 16 blocks", raw_bytes=50)
