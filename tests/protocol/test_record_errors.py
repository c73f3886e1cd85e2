"""One test for each way a record can be wrong; each builds the few bytes with struct and hashes them with xxhash."""

import struct
from typing import Any

import pytest
import xxhash

from kvcairn_protocol.codec import Encoded
from kvcairn_protocol.errors import (
    BadChecksum,
    BadCodec,
    BadFlags,
    BadFrame,
    BadKind,
    BadMagic,
    BadParent,
    BadPosition,
    BadSize,
    RecordError,
    TrailingBytes,
    TruncatedRecord,
    WrongKey,
    WrongLayout,
)
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.record import check_asked, encode_record, missing_record, parse_header, verify_record
from protocol_samples import history, layout, window

KEY = b"k" * 32
FRAME = b"\x28\xb5\x2f\xfd\x20\x08\x43\x00\x00\x07"
"""One run of eight 0x07."""


def record(payload: bytes = b"12345678", **changes: Any) -> bytes:
    """The history record of the first block of the small layout, with a true checksum whatever is changed."""
    fields = {
        "magic": b"KVC1", "kind": 1, "codec": 0, "flags": 0, "position": 8, "raw": 8, "stored": len(payload),
        "fingerprint": layout().fingerprint, "key": KEY, "parent": bytes(16),
    } | changes  # fmt: skip
    front = struct.pack("<4sBBHQQQ32s32s16s", *fields.values())
    return front + xxhash.xxh3_128(front + payload).digest() + payload


def refused(data: bytes, error: type[RecordError], *, made: Layout | None = None, max_raw_bytes: int = 8) -> str:
    with pytest.raises(RecordError) as caught:
        verify_record(data, made or layout(), max_raw_bytes=max_raw_bytes)
    assert type(caught.value) is error
    return caught.value.reason


def test_the_record_that_the_others_break_is_good() -> None:
    assert verify_record(record(), layout(), max_raw_bytes=8).key == KEY


def test_unknown_magic() -> None:
    for magic in (b"KVC2", b"KVC0", b"\0\0\0\0", b"kvc1"):
        assert refused(record(magic=magic), BadMagic) == "framing"


def test_unknown_kind() -> None:
    for kind in (0, 4, 255):
        assert refused(record(kind=kind), BadKind) == "kind"


def test_a_kind_that_the_layout_has_no_record_of() -> None:
    bare = layout(streams=[history()], replay_tokens=0)
    for kind in (2, 3):
        changed = record(kind=kind, fingerprint=bare.fingerprint)
        assert refused(changed, BadKind, made=bare) == "kind"


def test_unknown_codec() -> None:
    for codec in (3, 255):
        assert refused(record(codec=codec), BadCodec) == "codec"


def test_unknown_flags() -> None:
    for flags in (2, 4, 0x8000, 3):
        assert refused(record(flags=flags), BadFlags) == "flags"


def test_the_missing_flag_is_never_stored() -> None:
    assert refused(missing_record(layout(), Kind.HISTORY, key=KEY), BadFlags) == "flags"


@pytest.mark.parametrize("change", [{"position": 8}, {"parent": b"p" * 16}, {"codec": 1}])
def test_a_missing_answer_with_anything_else_set(change: dict[str, Any]) -> None:
    answer = record(b"", **({"flags": 1, "position": 0, "raw": 0} | change))
    with pytest.raises(BadFlags):
        parse_header(answer, max_raw_bytes=8)


def test_a_missing_answer_with_a_payload() -> None:
    with pytest.raises(BadFlags):
        parse_header(record(flags=1, position=0), max_raw_bytes=8)


@pytest.mark.parametrize("raw", [0, 1, 7, 9, 16])
def test_a_decoded_length_that_the_layout_contradicts(raw: int) -> None:
    assert refused(record(bytes(raw), raw=raw), BadSize, max_raw_bytes=100) == "size"


def test_a_stored_length_beyond_the_decoded_one() -> None:
    for codec in (0, 1, 2):
        assert refused(record(bytes(9), codec=codec), BadSize) == "size"


def test_a_raw_payload_that_is_shorter_than_decoded() -> None:
    assert refused(record(bytes(7)), BadSize) == "size"


def test_a_decoded_length_over_the_limit() -> None:
    assert verify_record(record(), layout(), max_raw_bytes=8)
    assert refused(record(), BadSize, max_raw_bytes=7) == "size"


@pytest.mark.parametrize("claimed", [2**63, 2**64 - 1])
def test_a_claim_of_exabytes_is_refused_from_the_header_alone(claimed: int) -> None:
    huge = record(raw=claimed, stored=claimed)[:128]
    with pytest.raises(BadSize):
        parse_header(huge, max_raw_bytes=64 << 20)


@pytest.mark.parametrize("position", [0, 1, 7, 9, 12, 2**64 - 1])
def test_a_position_that_is_no_block_end(position: int) -> None:
    assert refused(record(position=position), BadPosition) == "position"


def test_a_first_block_with_a_parent() -> None:
    assert refused(record(parent=b"\0" * 15 + b"\1"), BadParent) == "parent"


def test_a_later_block_without_a_parent() -> None:
    assert verify_record(record(position=16, parent=b"p" * 16), layout(), max_raw_bytes=8)
    assert refused(record(position=16), BadParent) == "parent"


def test_an_object_of_an_unchained_layout_has_neither_position_nor_parent() -> None:
    opaque = layout(chained=False)
    own: dict[str, Any] = {"fingerprint": opaque.fingerprint, "position": 0}
    assert verify_record(record(**own), opaque, max_raw_bytes=8)
    assert refused(record(**(own | {"position": 8})), BadPosition, made=opaque) == "position"
    assert refused(record(**own, parent=b"p" * 16), BadParent, made=opaque) == "parent"


def test_the_fingerprint_of_another_layout() -> None:
    assert refused(record(fingerprint=bytes(32)), WrongLayout) == "layout"


def test_bytes_that_end_early() -> None:
    for length in (0, 1, 127, 128, 135):
        assert refused(record()[:length], TruncatedRecord) == "framing"


def test_bytes_after_the_end() -> None:
    assert refused(record() + b"\0", TrailingBytes) == "framing"


def test_a_checksum_of_other_bytes() -> None:
    changed = bytearray(record())
    changed[-1] ^= 1
    assert refused(bytes(changed), BadChecksum) == "checksum"
    assert refused(record()[:112] + bytes(16) + b"12345678", BadChecksum) == "checksum"


def test_a_payload_that_is_no_zstd_frame() -> None:
    for codec in (1, 2):
        assert refused(record(b"1234567", codec=codec), BadFrame) == "codec"


def test_a_frame_of_another_content_size() -> None:
    made = layout(streams=[history(row_shape=[8]), window()])
    own = {"fingerprint": made.fingerprint, "codec": 1, "raw": 16}
    good = FRAME[:5] + b"\x10" + b"\x83\x00\x00\x07"
    assert verify_record(record(good, **own), made, max_raw_bytes=16)
    assert refused(record(FRAME, **own), BadFrame, made=made, max_raw_bytes=16) == "codec"


FINGERPRINT = layout().fingerprint


@pytest.mark.parametrize(("asked", "error"), [
    ({"fingerprint": bytes(32)}, WrongLayout),
    ({"kind": Kind.STATE}, WrongKey),
    ({"key": bytes(32)}, WrongKey),
    ({"position": 16}, WrongKey),
])  # fmt: skip
def test_an_answer_to_another_question(asked: dict[str, Any], error: type[RecordError]) -> None:
    header = parse_header(record(), max_raw_bytes=8)
    right: dict[str, Any] = {"kind": Kind.HISTORY, "key": KEY, "fingerprint": FINGERPRINT, "position": 8}
    check_asked(header, **right)
    check_asked(header, **(right | {"position": None}))
    with pytest.raises(error):
        check_asked(header, **(right | asked))


def test_a_writer_cannot_make_what_a_reader_refuses() -> None:
    payload = Encoded(0, bytes(8), 8)
    with pytest.raises(BadPosition):
        encode_record(layout(), Kind.HISTORY, key=KEY, position=9, parent=bytes(16), payload=payload)
    with pytest.raises(BadSize):
        encode_record(layout(), Kind.STATE, key=KEY, position=8, parent=bytes(16), payload=payload)
