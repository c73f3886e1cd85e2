"""Make the golden files beside this script from docs/wire.md alone: struct, hashlib, json and xxhash, no kvcairn.

    python tests/protocol/golden/make.py

The zstd frames are written by hand (RFC 8878): one segment, a content size of one byte, and blocks that repeat a byte.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import xxhash

HERE = Path(__file__).parent
HISTORY, STATE, WINDOW = 1, 2, 3
RAW, ZSTD, PLANES = 0, 1, 2
MISSING = 1

Document = dict[str, Any]


def stream(kind: str, name: str, layer: int, count: int, row_shape: list[int], dtype: str) -> Document:
    """One stream; `count` is tokens_per_row of a history stream, rows of any other."""
    counted = "tokens_per_row" if kind == "history" else "rows"
    return {"kind": kind, "name": name, "layer": layer, counted: count, "row_shape": row_shape, "dtype": dtype}


def flash() -> Document:
    """The packed layout of DeepSeek-V4-Flash: 2 layers of window alone, 21 CSA, 20 HCA; FP8 indexer keys."""
    ratios = [0, 0] + [4, 128] * 20 + [4]
    history, windows, carries = [], [], []
    for layer, ratio in enumerate(ratios):
        if ratio == 4:
            history.append(stream("history", "csa", layer, 4, [584], "uint8"))
            history.append(stream("history", "csa_index", layer, 4, [132], "uint8"))
            for name, width in (("csa_overlap", 512), ("csa_index_overlap", 128)):
                carries += [stream("carry", f"{name}_{part}", layer, 4, [width], "float32") for part in ("kv", "gate")]
        if ratio == 128:
            history.append(stream("history", "hca", layer, 128, [584], "uint8"))
        windows.append(stream("window", "window", layer, 128, [584], "uint8"))
    return {
        "version": 1, "model": "deepseek-ai/DeepSeek-V4-Flash@golden", "chained": True, "block_tokens": 512,
        "layers": 43, "replay_tokens": 43 * 128 - 42, "streams": history + windows + carries,
        "identity": {
            "format": "packed-584-fp8", "ratios": ",".join(map(str, ratios)), "window": "128", "forward_tokens": "512",
        },
    }  # fmt: skip


def small() -> Document:
    """A layout whose records fit on a page: payloads of 8 (history), 36 (state) and 20 bytes (window)."""
    return {
        "version": 1, "model": "example/small@1", "chained": True, "block_tokens": 8, "layers": 2, "replay_tokens": 6,
        "streams": [
            stream("history", "csa", 0, 4, [4], "uint8"),
            stream("window", "window", 1, 3, [2], "float16"),
            stream("carry", "overlap", 0, 2, [3], "float32"),
        ],
        "identity": {"rope": "none"},
    }  # fmt: skip


def canonical(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def root(fingerprint: bytes, salt: str) -> bytes:
    encoded = salt.encode()
    return hashlib.sha256(b"kvcairn/1" + fingerprint + struct.pack("<I", len(encoded)) + encoded).digest()


def keys(fingerprint: bytes, tokens: list[int], block_tokens: int, salt: str = "") -> list[bytes]:
    found, key = [], root(fingerprint, salt)
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = tokens[start : start + block_tokens]
        key = hashlib.sha256(key + struct.pack(f"<{block_tokens}I", *block)).digest()
        found.append(key)
    return found


def record(
    head: tuple[int, int, int, int, int], fingerprint: bytes, key: bytes, parent: bytes, payload: bytes
) -> bytes:
    """head: kind, codec, flags, position, raw_bytes."""
    kind, codec, flags, position, raw_bytes = head
    front = struct.pack("<4sBBHQQQ", b"KVC1", kind, codec, flags, position, raw_bytes, len(payload))
    front += fingerprint + key + parent
    return front + xxhash.xxh3_128(front + payload).digest() + payload


def frame(runs: list[tuple[int, int]]) -> bytes:
    """A zstd frame of runs (byte, length): header 0x20 is "single segment, content size in one byte"."""
    found = b"\x28\xb5\x2f\xfd\x20" + bytes([sum(length for _, length in runs)])
    for index, (byte, length) in enumerate(runs):
        is_last, repeats = index == len(runs) - 1, 1
        found += (is_last | repeats << 1 | length << 3).to_bytes(3, "little") + bytes([byte])
    return found


def golden() -> dict[str, bytes]:
    """Every golden file by name."""
    flash_print = hashlib.sha256(canonical(flash())).digest()
    small_print = hashlib.sha256(canonical(small())).digest()
    flash_keys = keys(flash_print, list(range(1100)), 512)
    small_keys = keys(small_print, list(range(1, 20)), 8)
    second = small_keys[1], small_keys[0][:16]
    # History: bytes 0 to 7. Window: 20 times 0x07. State: window rows of ones in float16 (00 3c), carries of ones in
    # float32 (00 00 80 3f); in planes: six 00, six 3c, then six each of 00, 00, 80, 3f.
    planes = [(0x00, 6), (0x3C, 6), (0x00, 12), (0x80, 6), (0x3F, 6)]
    facts = {
        "flash": {
            "fingerprint": flash_print.hex(), "root": root(flash_print, "").hex(),
            "tokens": "0 to 1099", "keys": [key.hex() for key in flash_keys],
        },
        "small": {
            "fingerprint": small_print.hex(), "root": root(small_print, "").hex(),
            "tokens": "1 to 19", "keys": [key.hex() for key in small_keys],
            "salt": "team-ä", "salted_root": root(small_print, "team-ä").hex(),
            "salted_keys": [key.hex() for key in keys(small_print, list(range(1, 20)), 8, "team-ä")],
        },
    }  # fmt: skip
    return {
        "flash_layout.json": canonical(flash()),
        "small_layout.json": canonical(small()),
        "keys.json": json.dumps(facts, indent=2).encode() + b"\n",
        "history.record": record((HISTORY, RAW, 0, 8, 8), small_print, small_keys[0], bytes(16), bytes(range(8))),
        "state.record": record((STATE, PLANES, 0, 16, 36), small_print, *second, frame(planes)),
        "window.record": record((WINDOW, ZSTD, 0, 16, 20), small_print, *second, frame([(7, 20)])),
        "missing.record": record((STATE, RAW, MISSING, 0, 0), small_print, small_keys[0], bytes(16), b""),
    }


if __name__ == "__main__":
    for name, content in golden().items():
        (HERE / name).write_bytes(content)
