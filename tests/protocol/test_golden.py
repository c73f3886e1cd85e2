"""The golden files: bytes that every reader and writer of version 1 agrees on, made by golden/make.py alone."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcairn_protocol import deepseek_v4
from kvcairn_protocol.codec import PLANES, RAW, ZSTD, Encoded, decode_into
from kvcairn_protocol.layout import Kind, Layout, parse_layout
from kvcairn_protocol.prefix import block_keys, parent_of, root_key
from kvcairn_protocol.record import HEADER_BYTES, encode_record, missing_record, verify_record

GOLDEN = Path(__file__).parent / "golden"
KEYS: dict[str, Any] = json.loads((GOLDEN / "keys.json").read_bytes())
FLASH = parse_layout((GOLDEN / "flash_layout.json").read_bytes())
SMALL = parse_layout((GOLDEN / "small_layout.json").read_bytes())

STATE_PAYLOAD = np.ones(6, "<f2").tobytes() + np.ones(6, "<f4").tobytes()
RECORDS = [
    ("history.record", Kind.HISTORY, 1, RAW, bytes(range(8))),
    ("state.record", Kind.STATE, 2, PLANES, STATE_PAYLOAD),
    ("window.record", Kind.WINDOW, 2, ZSTD, b"\x07" * 20),
]


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def small_keys() -> list[bytes]:
    return [bytes.fromhex(key) for key in KEYS["small"]["keys"]]


def test_the_golden_files_are_what_their_script_makes() -> None:
    made = runpy.run_path(str(GOLDEN / "make.py"))["golden"]()
    assert {name: golden(name) for name in made} == made


def test_the_flash_layout_is_the_one_we_make() -> None:
    made = deepseek_v4.flash("deepseek-ai/DeepSeek-V4-Flash@golden")
    assert made.canonical == golden("flash_layout.json")
    assert made == FLASH


@pytest.mark.parametrize(("layout", "name"), [(FLASH, "flash"), (SMALL, "small")])
def test_fingerprints_and_roots(layout: Layout, name: str) -> None:
    assert layout.fingerprint.hex() == KEYS[name]["fingerprint"]
    assert root_key(layout).hex() == KEYS[name]["root"]


def test_keys_of_complete_blocks() -> None:
    assert [key.hex() for key in block_keys(FLASH, range(1100))] == KEYS["flash"]["keys"]
    assert [key.hex() for key in block_keys(SMALL, range(1, 20))] == KEYS["small"]["keys"]


def test_the_salt_goes_into_the_root_as_utf_8() -> None:
    salt = KEYS["small"]["salt"]
    assert root_key(SMALL, salt=salt).hex() == KEYS["small"]["salted_root"]
    assert [key.hex() for key in block_keys(SMALL, range(1, 20), salt=salt)] == KEYS["small"]["salted_keys"]


@pytest.mark.parametrize(("name", "kind", "block", "codec", "payload"), RECORDS)
def test_a_golden_record_reads_back(name: str, kind: Kind, block: int, codec: int, payload: bytes) -> None:
    header = verify_record(golden(name), SMALL, max_raw_bytes=36)
    assert (header.kind, header.position, header.codec, header.key) == (kind, block * 8, codec, small_keys()[block - 1])
    target = bytearray(header.raw_bytes)
    decode_into(memoryview(target), header.codec, golden(name)[HEADER_BYTES:], SMALL.segments(kind))
    assert target == payload


@pytest.mark.parametrize(("name", "kind", "block", "codec", "payload"), RECORDS)
def test_the_same_fields_make_the_golden_record(name: str, kind: Kind, block: int, codec: int, payload: bytes) -> None:
    stored = golden(name)[HEADER_BYTES:]
    header, body = encode_record(
        SMALL, kind, key=small_keys()[block - 1], position=block * 8, parent=parent_of(small_keys(), block - 1),
        payload=Encoded(codec, stored, len(payload)),
    )  # fmt: skip
    assert header + bytes(body) == golden(name)


def test_the_golden_answer_for_what_is_missing() -> None:
    assert missing_record(SMALL, Kind.STATE, key=small_keys()[0]) == golden("missing.record")
