"""A keyed MAC inside each record, made and checked by clients, for stores that are not trusted.

Format: docs/wire.md ("Authenticated layouts"); why so, and what it costs: docs/decisions/mac.md. The MAC is the last
row of the payload, a stream of the layout: the record format is the same, and a service needs to know nothing. The
layout's identity names the key, so that records of different keys, or of none, never meet. Pure.
"""

import hashlib
import hmac
import struct
from typing import Any

from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.errors import BadMac, LayoutError
from kvcairn_protocol.layout import CarryStream, HistoryStream, Kind, Layout, Stream
from kvcairn_protocol.record import Header

MAC_BYTES = 32
KEY_BYTES = 16
"""The fewest that a key has; random ones, since whoever sees a record can try to guess at leisure."""

MAC_STREAM = "mac"
MAC_IDENTITY = "mac"
_SCHEME = "hmac-sha256"
_ID_BYTES = 8
_ID_CONTEXT, _CONTEXT = b"kvcairn/mac-id/1", b"kvcairn/mac/1"
_SUBJECT = struct.Struct("<BQ32s32s16s")


def mac_identity(mac_key: bytes) -> str:
    """How a layout's identity names the key: the scheme, and 8 bytes that stand for the key and tell nothing of it."""
    return f"{_SCHEME}:{_hmac(mac_key, _ID_CONTEXT)[:_ID_BYTES].hex()}"


def authenticated(layout: Layout, mac_key: bytes) -> Layout:
    """The same layout with a MAC at the end of each history and state payload; LayoutError if it has one already."""
    if is_authenticated(layout):
        raise LayoutError("identity", f"the layout has a MAC already ({layout.identity[MAC_IDENTITY]})")
    streams = (*layout.streams, *_mac_streams(layout))
    identity = {**layout.identity, MAC_IDENTITY: mac_identity(mac_key)}
    fields = {name: getattr(layout, name) for name in Layout.model_fields}
    return Layout(**{**fields, "streams": streams, "identity": identity})


def is_authenticated(layout: Layout) -> bool:
    """Whether the layout's identity says that its records carry a MAC."""
    return MAC_IDENTITY in layout.identity


def check_mac_streams(layout: Layout) -> None:
    """LayoutError unless an authenticated layout has its MACs where they must be: at the end of each payload."""
    for kind in (Kind.HISTORY, Kind.STATE):
        segments = layout.segments(kind)
        if segments and (segments[-1].stream.name != MAC_STREAM or segments[-1].size_bytes != MAC_BYTES):
            raise LayoutError(
                "streams", f"the last {kind.label} stream of an authenticated layout is {MAC_STREAM!r}, one row of "
                f"{MAC_BYTES} bytes; found {segments[-1].stream.name!r}"
            )  # fmt: skip


def mac_of(mac_key: bytes, header: Header, payload: Bytes) -> bytes:
    """The MAC of one record: 32 bytes. payload: decoded, with room for the MAC at its end, which is not read.

    header: what is read of it is its kind, position, fingerprint, key and parent. So a record can be moved to no other
    place, and be compressed in any way.
    """
    subject = _SUBJECT.pack(header.kind, header.position, header.fingerprint, header.key, header.parent)
    digest = hmac.new(mac_key, _CONTEXT + subject, hashlib.sha256)
    digest.update(memoryview(payload).cast("B")[:-MAC_BYTES])
    return digest.digest()


def check_mac(mac_key: bytes, header: Header, payload: Bytes) -> None:
    """BadMac unless the decoded payload ends with the MAC that this key makes of it. Takes the same time for any."""
    if not hmac.compare_digest(mac_of(mac_key, header, payload), memoryview(payload).cast("B")[-MAC_BYTES:]):
        raise BadMac(f"the MAC of the {header.kind.label} record {header.key.hex()} is not one that the key makes")


def _mac_streams(layout: Layout) -> list[Stream]:
    fields: dict[str, Any] = {"name": MAC_STREAM, "layer": 0, "row_shape": (MAC_BYTES,), "dtype": "uint8"}
    streams: list[Stream] = []
    if layout.history:
        streams.append(HistoryStream(kind="history", tokens_per_row=layout.block_tokens, **fields))
    if layout.has_state:
        streams.append(CarryStream(kind="carry", rows=1, **fields))
    return streams


def _hmac(mac_key: bytes, message: bytes) -> bytes:
    return hmac.digest(mac_key, message, "sha256")
