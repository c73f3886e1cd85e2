"""Prefix keys: token ids → one chained SHA-256 per block.

Formats: docs/wire.md ("Prefix keys"). Writer and reader both call `block_keys`, so that they cannot disagree on what
a block is (bug class 2 of docs/evidence.md: keys of different granularity hand out another user's cache).
"""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvcairn_protocol.layout import Layout

_CONTEXT = b"kvcairn/1"
MAX_TOKEN = 2**32 - 1

Tokens = Sequence[int] | npt.NDArray[np.integer]


def root_key(layout: Layout, *, salt: str = "") -> bytes:
    """The key of the empty prefix: 32 bytes that depend on the layout and the salt alone."""
    encoded = salt.encode()
    return hashlib.sha256(_CONTEXT + layout.fingerprint + struct.pack("<I", len(encoded)) + encoded).digest()


def block_keys(layout: Layout, tokens: Tokens, *, salt: str = "") -> list[bytes]:
    """The keys of every complete block of `tokens`, in order; the incomplete tail has none.

    tokens: one sequence (shape [n]). Key i stands for the tokens [0, (i + 1) · block_tokens).
    ValueError for another shape, and for a token that is no uint32, in the tail as well.
    """
    packed = _pack(tokens, layout.block_tokens)
    key, keys, step = root_key(layout, salt=salt), [], layout.block_tokens * 4
    for start in range(0, len(packed), step):
        key = hashlib.sha256(key + packed[start : start + step]).digest()
        keys.append(key)
    return keys


def parent_of(keys: Sequence[bytes], index: int) -> bytes:
    """The parent field of block `index`: the first 16 bytes of the key before it, zeros for the first block."""
    return keys[index - 1][:16] if index else bytes(16)


def object_key(name: bytes) -> bytes:
    """The key of an object of an unchained layout: 32-byte names as they are, any other name through SHA-256."""
    return name if len(name) == 32 else hashlib.sha256(name).digest()


def _pack(tokens: Tokens, block_tokens: int) -> bytes:
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise ValueError(f"token ids are one sequence; these have the shape {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"token ids are integers, not {array.dtype}")
    if array.size and (array.min() < 0 or array.max() > MAX_TOKEN):
        raise ValueError(f"token ids lie in [0, {MAX_TOKEN}]; found {array.min()} to {array.max()}")
    whole = len(array) // block_tokens * block_tokens
    return array[:whole].astype("<u4").tobytes()
