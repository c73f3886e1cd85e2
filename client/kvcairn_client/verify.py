"""What is checked of a record before it counts as loaded, by whichever way it came."""

from kvcairn_client.records import Wanted
from kvcairn_protocol.codec import RAW, Bytes, decode_into
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.mac import check_mac
from kvcairn_protocol.record import Header, check_asked, check_header, check_payload


def check_wanted(header: Header, layout: Layout, wanted: Wanted) -> None:
    """RecordError unless the header is that of a wanted record, and right for its layout."""
    check_asked(header, kind=wanted.kind, key=wanted.key, fingerprint=layout.fingerprint, position=wanted.position)
    check_header(header, layout)


def load(
    header: Header, head: Bytes, payload: memoryview, layout: Layout, wanted: Wanted, *, mac_key: bytes | None = None
) -> None:
    """Verify a payload as stored and decode it into its target; a raw one lies there already.

    RecordError, CodecError: damaged; BadMac: whole, but not made by a holder of the key. The target's content is
    undefined then, or not to be trusted. head: the header's bytes. mac_key: None for a layout without a MAC.
    """
    check_payload(header, head, payload)
    if header.codec != RAW:
        decode_into(wanted.target, header.codec, payload, layout.segments(wanted.kind))
    if mac_key is not None:
        check_mac(mac_key, header, wanted.target)
