"""The MAC of a record: made by the wire page's words alone, and worth nothing in any other place."""

import hashlib
import hmac
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kvcairn_protocol.errors import BadMac, LayoutError
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.mac import authenticated, check_mac, check_mac_streams, is_authenticated, mac_identity, mac_of
from kvcairn_protocol.record import Header
from protocol_samples import carry, history, layout, window

KEY = bytes(range(32))
PLAIN = layout(streams=[history(), window(), carry()])
PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
GOLDEN_IDENTITY = "hmac-sha256:acfbf5690be48d66"
GOLDEN_MAC = "bd6a2018ccbdfdb12b2cbbd6114aaea2480df073fabdc4656560c149ad5b267c"
PAYLOAD = bytes(range(8))
HEADER = Header(
    kind=Kind.HISTORY, position=16, raw_bytes=40, stored_bytes=40,
    fingerprint=bytes([1]) * 32, key=bytes([2]) * 32, parent=bytes([3]) * 16,
)  # fmt: skip


def by_the_page(key: bytes, payload: bytes) -> bytes:
    message = b"kvcairn/mac/1" + b"\x01" + struct.pack("<Q", 16) + b"\x01" * 32 + b"\x02" * 32 + b"\x03" * 16 + payload
    return hmac.new(key, message, hashlib.sha256).digest()


def signed(key: bytes = KEY) -> bytes:
    return PAYLOAD + by_the_page(key, PAYLOAD)


def test_the_bytes_are_those_of_the_wire_page() -> None:
    assert mac_identity(KEY) == GOLDEN_IDENTITY
    made = mac_of(KEY, HEADER, PAYLOAD + bytes(32))
    assert made == by_the_page(KEY, PAYLOAD)
    assert made.hex() == GOLDEN_MAC
    check_mac(KEY, HEADER, signed())


@pytest.mark.parametrize(
    "moved",
    [
        replace(HEADER, kind=Kind.STATE),
        replace(HEADER, position=24),
        replace(HEADER, fingerprint=bytes(32)),
        replace(HEADER, key=bytes(32)),
        replace(HEADER, parent=bytes(16)),
    ],
    ids=["kind", "position", "layout", "key", "parent"],
)
def test_a_mac_is_worth_nothing_in_another_place(moved: Header) -> None:
    with pytest.raises(BadMac, match="not one that the key makes"):
        check_mac(KEY, moved, signed())


@pytest.mark.parametrize("bit", [0, 7 * 8, 8 * 8, 39 * 8 + 7], ids=["first", "last byte", "mac", "last bit of the mac"])
def test_every_bit_of_the_payload_and_of_the_mac_counts(bit: int) -> None:
    forged = bytearray(signed())
    forged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadMac):
        check_mac(KEY, HEADER, forged)


def test_another_key_makes_another_mac_and_another_layout() -> None:
    other = bytes(32)
    with pytest.raises(BadMac):
        check_mac(other, HEADER, signed())
    layouts = {PLAIN, authenticated(PLAIN, KEY), authenticated(PLAIN, other)}
    assert len({each.fingerprint for each in layouts}) == 3


def test_a_layout_gets_one_row_at_each_payload_s_end_and_keeps_all_else() -> None:
    made = authenticated(PLAIN, KEY)
    assert (is_authenticated(made), is_authenticated(PLAIN)) == (True, False)
    check_mac_streams(made)
    for kind, more_bytes in ((Kind.HISTORY, 32), (Kind.STATE, 32), (Kind.WINDOW, 0)):
        assert made.payload_bytes(kind) == PLAIN.payload_bytes(kind) + more_bytes
        assert made.segments(kind)[: len(PLAIN.segments(kind))] == PLAIN.segments(kind)
    row = {"name": "mac", "layer": 0, "row_shape": [32], "dtype": "uint8"}
    document = json.loads(PLAIN.canonical)
    document["identity"]["mac"] = GOLDEN_IDENTITY
    document["streams"] += [{"kind": "history", "tokens_per_row": 8, **row}, {"kind": "carry", "rows": 1, **row}]
    assert json.loads(made.canonical) == document


def test_a_layout_without_state_gets_none() -> None:
    stateless = layout(streams=[history()], replay_tokens=0)
    assert authenticated(stateless, KEY).payload_bytes(Kind.STATE) == 0


def test_what_is_authenticated_already_or_says_so_without_a_mac_is_refused() -> None:
    with pytest.raises(LayoutError, match="has a MAC already"):
        authenticated(authenticated(PLAIN, KEY), KEY)
    with pytest.raises(LayoutError, match=r"the last history stream of an authenticated layout is 'mac'.*found 'csa'"):
        check_mac_streams(layout(identity={"mac": GOLDEN_IDENTITY}))


def test_the_page_shows_these_values() -> None:
    assert GOLDEN_IDENTITY in PAGE.read_text()
    assert GOLDEN_MAC in PAGE.read_text()
