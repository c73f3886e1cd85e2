"""Layouts, keys and records made from the wire page with hashlib, struct and xxhash alone: the tests' oracle."""

import hashlib
import json
import struct
import uuid
from typing import Any

import xxhash

HISTORY, STATE, WINDOW = 1, 2, 3
KINDS = {"history": HISTORY, "state": STATE, "window": WINDOW}
RECORDS = "application/vnd.kvcairn.records"
HEADER = struct.Struct("<4sBBHQQQ32s32s16s")


def layout_document(
    *,
    block_tokens: int = 8,
    history_bytes: int = 32,
    state_bytes: int = 24,
    replay_tokens: int | None = 7,
    chained: bool = True,
    model: str | None = None,
) -> dict[str, Any]:
    """A layout of uint8 rows whose history payload has `history_bytes` and whose state payload has `state_bytes`.

    One history row a block and one window row of half a block's rows, so that window records exist as well. Its model
    is new each time, unless given, so that tests that share a service never meet.
    """
    rows = block_tokens // 2
    assert state_bytes % rows == 0
    return {
        "version": 1,
        "model": model or uuid.uuid4().hex,
        "chained": chained,
        "block_tokens": block_tokens,
        "layers": 2,
        "replay_tokens": replay_tokens,
        "streams": [
            {"kind": "history", "name": "h", "layer": 0, "tokens_per_row": block_tokens,
             "row_shape": [history_bytes], "dtype": "uint8"},
            {"kind": "window", "name": "w", "layer": 1, "rows": rows,
             "row_shape": [state_bytes // rows], "dtype": "uint8"},
        ],
        "identity": {},
    }  # fmt: skip


def canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def fingerprint(document: dict[str, Any]) -> bytes:
    return hashlib.sha256(canonical(document)).digest()


def chain(document: dict[str, Any], blocks: int, *, salt: bytes = b"", seed: int = 0) -> list[bytes]:
    """The keys of a prompt of that many blocks; another seed is another prompt from its first token on."""
    key = hashlib.sha256(b"kvcairn/1" + fingerprint(document) + struct.pack("<I", len(salt)) + salt).digest()
    keys, block_tokens = [], document["block_tokens"]
    for block in range(blocks):
        tokens = [seed * 1000 + block * block_tokens + index for index in range(block_tokens)]
        key = hashlib.sha256(key + struct.pack(f"<{block_tokens}I", *tokens)).digest()
        keys.append(key)
    return keys


def record(
    document: dict[str, Any],
    kind: int,
    key: bytes,
    *,
    position: int,
    parent: bytes = bytes(16),
    payload: bytes,
    codec: int = 0,
    raw_bytes: int | None = None,
    stored_bytes: int | None = None,
    flags: int = 0,
    magic: bytes = b"KVC1",
    layout: bytes | None = None,
) -> bytes:
    """One record; every field can be forged, and the checksum is right for what is forged."""
    head = HEADER.pack(
        magic, kind, codec, flags, position,
        len(payload) if raw_bytes is None else raw_bytes,
        len(payload) if stored_bytes is None else stored_bytes,
        layout or fingerprint(document), key, parent,
    )  # fmt: skip
    return head + xxhash.xxh3_128(head + payload).digest() + payload


def payload_of(document: dict[str, Any], kind: int, key: bytes) -> bytes:
    """The bytes that these tests keep under a key: as long as the layout says, different for each key and kind."""
    history, window = document["streams"]
    row_bytes = window["row_shape"][0]
    size = {
        HISTORY: history["row_shape"][0],
        STATE: window["rows"] * row_bytes,
        WINDOW: max(0, document["block_tokens"] - window["rows"]) * row_bytes,
    }[kind]
    start = hashlib.sha256(key + bytes([kind])).digest()
    return (start * (size // 32 + 1))[:size]


def chain_records(document: dict[str, Any], keys: list[bytes], *, kind: int = HISTORY) -> list[bytes]:
    """One record of that kind for each key of a chain."""
    step = document["block_tokens"]
    return [
        record(
            document, kind, key, position=(index + 1) * step,
            parent=keys[index - 1][:16] if index else bytes(16), payload=payload_of(document, kind, key),
        )
        for index, key in enumerate(keys)
    ]  # fmt: skip


def missing(document: dict[str, Any], kind: int, key: bytes) -> bytes:
    """What a fetch answers for a record that is not there."""
    return record(document, kind, key, position=0, payload=b"", flags=1)


def split(body: bytes) -> list[bytes]:
    """A body of records cut into its records."""
    records, at = [], 0
    while at < len(body):
        size = 128 + struct.unpack_from("<Q", body, at + 24)[0]
        records.append(body[at : at + size])
        at += size
    return records
