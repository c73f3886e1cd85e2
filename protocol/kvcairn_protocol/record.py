"""One record: a header of 128 bytes, then the payload as stored.

Format: docs/wire.md ("Record"). One validator for writer and reader; every check that needs no payload comes before
anything is allocated for it. The checksum is XXH3-128, big-endian, over header bytes [0, 112) and the stored payload.
"""

import struct
from dataclasses import dataclass

import xxhash

from kvcairn_protocol.codec import RAW, Encoded, check_frame, decode_into
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
    CodecError,
    TrailingBytes,
    TruncatedRecord,
    WrongKey,
    WrongLayout,
)
from kvcairn_protocol.layout import Kind, Layout

MAGIC = b"KVC1"
HEADER_BYTES = 128
CHECKED_BYTES = 112
FLAG_MISSING = 1
CODECS = (0, 1, 2)
_KINDS = {int(kind): kind for kind in Kind}
_LAYOUT = struct.Struct("<4sBBHQQQ32s32s16s16s")
_FIELD_BYTES = (32, 32, 16, 16)

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The 128 bytes in front of a payload, parsed.

    position: tokens processed at the record's end. raw_bytes, stored_bytes: payload length decoded and as it follows.
    fingerprint, key: 32 bytes each; parent: the first 16 bytes of the previous block's key; checksum: 16 bytes.
    """

    kind: Kind
    position: int
    raw_bytes: int
    stored_bytes: int
    fingerprint: bytes
    key: bytes
    parent: bytes
    codec: int = RAW
    flags: int = 0
    checksum: bytes = bytes(16)

    def __post_init__(self) -> None:
        """ValueError for a field of the wrong length: packing would pad or cut it in silence."""
        sizes = (len(self.fingerprint), len(self.key), len(self.parent), len(self.checksum))
        if sizes != _FIELD_BYTES:
            raise ValueError(f"fingerprint, key, parent and checksum have {_FIELD_BYTES} bytes; found {sizes}")

    @property
    def missing(self) -> bool:
        """True for a fetch's answer for a record that is not there."""
        return bool(self.flags & FLAG_MISSING)

    @property
    def record_bytes(self) -> int:
        """Header and payload together, as they travel."""
        return HEADER_BYTES + self.stored_bytes

    def pack(self) -> bytes:
        """The header's 128 bytes."""
        return _LAYOUT.pack(
            MAGIC, self.kind, self.codec, self.flags, self.position, self.raw_bytes, self.stored_bytes,
            self.fingerprint, self.key, self.parent, self.checksum,
        )  # fmt: skip

    def seal(self, payload: Bytes) -> bytes:
        """The header's 128 bytes with the checksum of `payload`, whatever its own says."""
        packed = self.pack()
        return packed[:CHECKED_BYTES] + checksum(packed, payload)


def checksum(header: Bytes, payload: Bytes) -> bytes:
    """XXH3-128 of header bytes [0, 112) followed by the payload as stored."""
    digest = xxhash.xxh3_128(memoryview(header)[:CHECKED_BYTES])
    digest.update(payload)
    return digest.digest()


def encode_record(
    layout: Layout, kind: Kind, *, key: bytes, position: int, parent: bytes, payload: Encoded
) -> tuple[bytes, Bytes]:
    """Header and payload of one record, ready to be sent one after the other."""
    header = header_of(layout, kind, key=key, position=position, parent=parent, payload=payload)
    return header.seal(payload.data), payload.data


def header_of(layout: Layout, kind: Kind, *, key: bytes, position: int, parent: bytes, payload: Encoded) -> Header:
    """One record's header, not sealed yet.

    Checked with the reader's own validator, so that what cannot be read is never written.
    """
    header = Header(
        kind=kind, codec=payload.codec, position=position, raw_bytes=payload.raw_bytes, stored_bytes=len(payload.data),
        fingerprint=layout.fingerprint, key=key, parent=parent,
    )  # fmt: skip
    check_header(header, layout)
    return header


def missing_record(layout: Layout, kind: Kind, *, key: bytes) -> bytes:
    """A fetch's answer for a record that is not there: a header alone, with a valid checksum."""
    header = Header(
        kind=kind, flags=FLAG_MISSING, position=0, raw_bytes=0, stored_bytes=0,
        fingerprint=layout.fingerprint, key=key, parent=bytes(16),
    )  # fmt: skip
    return header.seal(b"")


def parse_header(data: Bytes, *, max_raw_bytes: int) -> Header:
    """Read a header and check what needs no layout: magic, kind, codec, flags, and that the lengths can be true.

    data: at least 128 bytes, of which the first 128 are read. max_raw_bytes: the largest decoded payload allowed.
    """
    if len(data) < HEADER_BYTES:
        raise TruncatedRecord(f"a header has {HEADER_BYTES} bytes, only {len(data)} are here")
    magic, kind, codec, flags, position, raw, stored, fingerprint, key, parent, digest = _LAYOUT.unpack_from(data)
    if magic != MAGIC:
        raise BadMagic(f"a record starts with {MAGIC!r}, this starts with {magic!r}")
    if kind not in _KINDS:
        raise BadKind(f"kind is 1 history, 2 state or 3 window; found {kind}")
    if codec not in CODECS:
        raise BadCodec(f"codec is 0 raw, 1 zstd or 2 byte planes then zstd; found {codec}")
    if flags & ~FLAG_MISSING:
        raise BadFlags(f"only flag bit 0 (missing) is known; found {flags:#06x}")
    header = Header(
        kind=_KINDS[kind], codec=codec, flags=flags, position=position, raw_bytes=raw, stored_bytes=stored,
        fingerprint=fingerprint, key=key, parent=parent, checksum=digest,
    )  # fmt: skip
    _check_lengths(header, max_raw_bytes)
    return header


def _check_lengths(header: Header, max_raw_bytes: int) -> None:
    if header.raw_bytes > max_raw_bytes:
        raise BadSize(f"a record has at most {max_raw_bytes} bytes decoded; this claims {header.raw_bytes}")
    if header.stored_bytes > header.raw_bytes:
        raise BadSize(f"stored_bytes is at most raw_bytes ({header.raw_bytes}); found {header.stored_bytes}")
    if header.codec == RAW and header.stored_bytes != header.raw_bytes:
        raise BadSize(f"codec raw stores all {header.raw_bytes} bytes; found {header.stored_bytes}")
    if header.missing and (header.raw_bytes or header.codec or header.position or any(header.parent)):
        raise BadFlags("a record flagged missing has no payload, codec, position or parent")


def check_header(header: Header, layout: Layout) -> None:
    """Check a header against its layout: fingerprint, kind, length, position and parent.

    A header flagged missing never passes: it is an answer, not a record.
    """
    if header.missing:
        raise BadFlags("a record flagged missing is a fetch's answer and cannot be stored")
    if header.fingerprint != layout.fingerprint:
        raise WrongLayout(f"layout {header.fingerprint.hex()} is not {layout.fingerprint.hex()}")
    expected = layout.payload_bytes(header.kind)
    if not expected:
        raise BadKind(f"this layout has no {header.kind.label} records")
    if header.raw_bytes != expected:
        raise BadSize(f"a {header.kind.label} payload of this layout has {expected} bytes; found {header.raw_bytes}")
    if layout.chained:
        _check_chained_place(header, layout.block_tokens)
    elif header.position:
        raise BadPosition(f"records of an unchained layout have position 0; found {header.position}")
    elif any(header.parent):
        raise BadParent(f"records of an unchained layout have no parent; found {header.parent.hex()}")


def _check_chained_place(header: Header, block_tokens: int) -> None:
    if header.position < block_tokens or header.position % block_tokens:
        raise BadPosition(f"position is a multiple of {block_tokens} from {block_tokens} on; found {header.position}")
    is_first = header.position == block_tokens
    if is_first == any(header.parent):
        right = "zero" if is_first else "the first 16 bytes of the previous block's key"
        raise BadParent(f"the parent at position {header.position} is {right}; found {header.parent.hex()}")


def check_payload(header: Header, packed_header: Bytes, payload: Bytes) -> None:
    """Check the stored payload of an accepted header: its length, its checksum, and the frame of a compressed one.

    packed_header: the 128 bytes as received; hashing them, not a copy made from `header`, covers every bit.
    """
    if len(payload) < header.stored_bytes:
        raise TruncatedRecord(f"the payload has {header.stored_bytes} bytes, only {len(payload)} are here")
    if len(payload) > header.stored_bytes:
        raise TrailingBytes(f"{len(payload) - header.stored_bytes} bytes follow the record's end")
    if checksum(packed_header, payload) != header.checksum:
        raise BadChecksum(f"the checksum of the {header.kind.label} record {header.key.hex()} does not match")
    try:
        check_frame(header.codec, payload, raw_bytes=header.raw_bytes)
    except CodecError as error:
        raise BadFrame(str(error)) from None


def check_decodes(header: Header, layout: Layout, payload: Bytes) -> None:
    """Decode the stored payload of a header that `check_header` took, and drop the result; BadFrame if it is bad.

    Takes as much memory again as the payload has decoded.
    """
    if header.codec == RAW:
        return
    try:
        target = memoryview(bytearray(header.raw_bytes))
        decode_into(target, header.codec, payload, layout.segments(header.kind))
    except CodecError as error:
        raise BadFrame(str(error)) from None


def check_asked(header: Header, *, kind: Kind, key: bytes, fingerprint: bytes, position: int | None = None) -> None:
    """Check that a received header answers what was asked; position None: not known to the reader."""
    if header.fingerprint != fingerprint:
        raise WrongLayout(f"asked for layout {fingerprint.hex()}, got {header.fingerprint.hex()}")
    if header.kind != kind or header.key != key:
        raise WrongKey(f"asked for {kind.label} {key.hex()}, got {header.kind.label} {header.key.hex()}")
    if position is not None and not header.missing and header.position != position:
        raise WrongKey(f"asked for the record at position {position}, got the one at {header.position}")


def verify_record(record: Bytes, layout: Layout, *, max_raw_bytes: int) -> Header:
    """Check one whole record, header and payload; returns its header, raises a RecordError."""
    header = parse_header(record, max_raw_bytes=max_raw_bytes)
    check_header(header, layout)
    view = memoryview(record)
    check_payload(header, view[:HEADER_BYTES], view[HEADER_BYTES:])
    return header
