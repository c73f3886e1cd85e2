"""Codecs: raw, zstd, and byte planes then zstd; what does not pay is stored raw.

Format: docs/wire.md ("Codec 2"). Byte planes put byte j of every item of a stream next to each other: the exponents of
floats, which repeat, no longer alternate with mantissas, which do not. Why these limits: docs/decisions/codecs.md.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from kvcairn_protocol.errors import CodecError
from kvcairn_protocol.layout import Segment

RAW, ZSTD, PLANES = 0, 1, 2
CODEC_NAMES = ("auto", "raw", "zstd", "shuffle-zstd")
CodecName = Literal["auto", "raw", "zstd", "shuffle-zstd"]

MAX_WINDOW_BYTES = 8 << 20
BYTES_A_BLOCK, SPARE_BLOCKS = 1 << 10, 16
"""A frame's blocks decode to 1 KiB on average, or more: encoders make 128 KiB, only an attack makes millions."""
_RLE_BLOCK = 1
LEVEL, LONG_REPEATS = 1, -200
"""LONG_REPEATS: a level of zstd that looks for long repeats alone and leaves every other byte as it is. Such frames
decode much faster than a link of 10 Gb/s brings raw bytes; those with entropy coding, as at level 1, do not."""
SAMPLE_BYTES = 64 << 10
PAYS_BELOW, PAYS_FROM_BYTES = 0.5, 128 << 10
"""Auto keeps what shrinks to less than half, and leaves small payloads alone: to begin decoding takes a while. A
restore over 10 Gb/s is then not slower than raw, decoding included."""

Bytes = bytes | bytearray | memoryview
Array = npt.NDArray[np.uint8]


class Encoded(NamedTuple):
    """A payload as it is stored: codec number, bytes, and the length it decodes to."""

    codec: int
    data: Bytes
    raw_bytes: int


def encode(payload: Bytes, codec: CodecName, segments: tuple[Segment, ...]) -> Encoded:
    """Encode a payload whose streams lie at `segments`; raw wherever encoding does not make it smaller.

    The payload is not copied where it stays raw.
    """
    payload = memoryview(payload).cast("B")
    if codec == "raw":
        return Encoded(RAW, payload, len(payload))
    if codec == "zstd":
        return _smaller(ZSTD, payload, payload)
    if codec == "shuffle-zstd":
        return _smaller(PLANES, payload, to_planes(payload, segments))
    if codec == "auto":
        return _encode_if_it_pays(payload)
    raise CodecError(f"codec is one of {', '.join(CODEC_NAMES)}; found {codec!r}")


def _encode_if_it_pays(payload: memoryview) -> Encoded:
    if len(payload) < PAYS_FROM_BYTES or not _sample_pays(payload):
        return Encoded(RAW, payload, len(payload))
    return _smaller(ZSTD, payload, payload, share=PAYS_BELOW, level=LONG_REPEATS)


def _sample_pays(view: memoryview) -> bool:
    """Whether a few slices, evenly spread, shrink well enough to be worth trying the whole."""
    slices = 4
    piece = SAMPLE_BYTES // slices
    step = (len(view) - piece) // (slices - 1)
    sample = b"".join(view[at * step : at * step + piece] for at in range(slices))
    return len(_compress(sample, level=LONG_REPEATS)) < PAYS_BELOW * len(sample)


def _smaller(codec: int, payload: memoryview, prepared: Bytes, *, share: float = 1.0, level: int = LEVEL) -> Encoded:
    frame = _compress(prepared, level=level)
    if len(frame) < share * len(payload):
        return Encoded(codec, frame, len(payload))
    return Encoded(RAW, payload, len(payload))


def _compress(data: Bytes, *, level: int) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def check_frame(codec: int, stored: Bytes, *, raw_bytes: int) -> None:
    """Check a compressed payload before anything is allocated to decode it; CodecError if it is not as it must be.

    It is one whole zstd frame: of the right content size, without a dictionary, with a window within bounds.
    """
    if codec == RAW:
        return
    try:
        frame = zstandard.get_frame_parameters(stored)
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from None
    if bytes(stored[:4]) != zstandard.FRAME_HEADER:
        raise CodecError("the payload is a zstd frame; this is a skippable one")
    if frame.content_size != raw_bytes:
        raise CodecError(f"the frame's content size must be {raw_bytes}; found {frame.content_size}")
    if frame.dict_id:
        raise CodecError(f"frames use no dictionary; this one names {frame.dict_id}")
    if frame.window_size > MAX_WINDOW_BYTES:
        raise CodecError(f"the frame's window is at most {MAX_WINDOW_BYTES} bytes; found {frame.window_size}")
    end = _frame_end(stored, max_blocks=raw_bytes // BYTES_A_BLOCK + SPARE_BLOCKS, has_checksum=frame.has_checksum)
    if end != len(stored):
        raise CodecError(
            f"the frame ends at byte {end} of {len(stored)}: a payload is one whole frame and nothing else"
        )


def _frame_end(stored: Bytes, *, max_blocks: int, has_checksum: bool) -> int:
    """Where the frame's block headers say that it ends (RFC 8878 §3.1.1.2); nothing is decoded, nothing allocated."""
    at = zstandard.frame_header_size(stored)
    for _ in range(max_blocks):
        header = int.from_bytes(stored[at : at + 3], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == _RLE_BLOCK else size)
        if is_last or at > len(stored):
            return at + 4 * has_checksum
    raise CodecError(f"a frame of this length has at most {max_blocks} blocks; found more")


def decode_into(target: memoryview, codec: int, stored: Bytes, segments: tuple[Segment, ...]) -> None:
    """Decode a stored payload into `target`, a writable view of exactly its raw length; CodecError if it is bad."""
    if codec == RAW:
        _copy(target, stored)
        return
    if codec not in (ZSTD, PLANES):
        raise CodecError(f"codec is 0 raw, 1 zstd or 2 byte planes then zstd; found {codec}")
    raw = _decompress(stored, raw_bytes=len(target))
    if codec == ZSTD:
        target[:] = raw
    else:
        from_planes(target, raw, segments)


def _copy(target: memoryview, stored: Bytes) -> None:
    if len(stored) != len(target):
        raise CodecError(f"a raw payload has all of its {len(target)} bytes; found {len(stored)}")
    target[:] = stored


def _decompress(stored: Bytes, *, raw_bytes: int) -> bytes:
    check_frame(ZSTD, stored, raw_bytes=raw_bytes)
    try:
        raw = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompress(
            stored, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CodecError(f"the frame does not decode: {error}") from None
    if len(raw) != raw_bytes:
        raise CodecError(f"the frame decodes to {len(raw)} bytes instead of {raw_bytes}")
    return raw


def to_planes(payload: Bytes, segments: tuple[Segment, ...]) -> memoryview:
    """In each stream's segment, plane j holds byte j of every item; the planes follow each other."""
    planes = np.empty(len(payload), np.uint8)
    for items, target in _by_segment(np.frombuffer(payload, np.uint8), planes, segments):
        for j, plane in enumerate(target):
            plane[:] = items[:, j]
    return planes.data


def from_planes(target: memoryview, planes: Bytes, segments: tuple[Segment, ...]) -> None:
    """The inverse of `to_planes`, into a writable view of the same length.

    Plane by plane: one assignment of the transposed whole takes several times as long.
    """
    payload = np.frombuffer(target, np.uint8)
    for items, source in _by_segment(payload, np.frombuffer(planes, np.uint8), segments):
        for j, plane in enumerate(source):
            items[:, j] = plane


def _by_segment(payload: Array, planes: Array, segments: tuple[Segment, ...]) -> Iterator[tuple[Array, Array]]:
    """Each segment as items [n, item_bytes] of the payload, and as planes [item_bytes, n]; views."""
    for segment in segments:
        part, item_bytes = slice(segment.offset, segment.offset + segment.size_bytes), segment.stream.item_bytes
        yield payload[part].reshape(-1, item_bytes), planes[part].reshape(item_bytes, -1)
