"""What the model's tenants store: two layouts, two prompts each, and records that are wrong on purpose."""

import hashlib
from typing import Any

from service_samples import KINDS, chain, fingerprint, layout_document, payload_of, record

BLOCK_TOKENS, BLOCKS = 8, 5
DOCUMENTS = [
    layout_document(history_bytes=3_000, state_bytes=2_000, model="model-small"),
    layout_document(history_bytes=18_000, state_bytes=5_000, model="model-large"),
]
LAYOUTS = [fingerprint(document) for document in DOCUMENTS]
PROMPTS = [[chain(document, BLOCKS, seed=seed) for seed in range(2)] for document in DOCUMENTS]
STRANGE_PARENT = b"nobody's child.."

FORGERIES: dict[str, dict[str, Any]] = {
    "kind": {"kind": 9},
    "codec": {"codec": 7},
    "flags": {"flags": 2},
    "size": {"raw_bytes": 7, "stored_bytes": 7, "payload": b"7 bytes"},
    "layout": {"layout": bytes(range(32))},
    "position": {"position": BLOCK_TOKENS + 3},
    "parent": {"position": 2 * BLOCK_TOKENS, "parent": bytes(16)},
    "checksum": {},
    "framing": {"magic": b"KVC2"},
}
"""By the reason that the page gives for it; each is right but for that, and its checksum is made of what it says."""


def place_of(which: int, prompt: int, spot: int, *, is_strange: bool) -> tuple[bytes, int, bytes]:
    """A block's key, position and parent; a strange one stands one block too deep, behind a block of nobody's."""
    keys = PROMPTS[which][prompt]
    if is_strange:
        return keys[spot], (spot + 2) * BLOCK_TOKENS, STRANGE_PARENT
    return keys[spot], (spot + 1) * BLOCK_TOKENS, keys[spot - 1][:16] if spot else bytes(16)


def payload(which: int, kind: str, key: bytes, *, writer: str) -> bytes:
    """As long as the layout says; other bytes for each writer."""
    size_bytes = len(payload_of(DOCUMENTS[which], KINDS[kind], key))
    start = hashlib.sha256(key + kind.encode() + writer.encode()).digest()
    return (start * (size_bytes // 32 + 1))[:size_bytes]


def made(which: int, kind: str, place: tuple[bytes, int, bytes], *, writer: str, forged: str | None = None) -> bytes:
    """A record; forged: which of FORGERIES it is."""
    key, position, parent = place
    fields = {"position": position, "parent": parent, "payload": payload(which, kind, key, writer=writer)}
    changes = FORGERIES[forged] if forged else {}
    body = record(DOCUMENTS[which], changes.get("kind", KINDS[kind]), key, **{**fields, **_but_kind(changes)})
    return body[:-1] + bytes([body[-1] ^ 1]) if forged == "checksum" else body


def _but_kind(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name != "kind"}
