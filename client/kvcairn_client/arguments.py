"""Checks of what callers hand in: a mistake here is a ValueError, never a request. Pure."""

from collections.abc import Iterable, Sequence

from kvcairn_client.records import Wanted
from kvcairn_protocol.layout import Kind, Layout

KEY_BYTES = 32


def bearer(token: str | None) -> dict[str, str]:
    """The header that names the tenant. ValueError, which does not repeat the token, where it cannot be one."""
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token is printable ASCII without spaces; did a line break or quote come along?")
    return {"Authorization": f"Bearer {token}"}


def check_keys(keys: Iterable[bytes]) -> None:
    """ValueError for a key that is not 32 bytes."""
    for index, key in enumerate(keys):
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes; key {index} has {len(key)}")


def byte_targets(layout: Layout, wanted: Sequence[Wanted]) -> list[Wanted]:
    """The same records with their targets as flat views of bytes; ValueError where a target cannot take its record."""
    check_keys(item.key for item in wanted)
    return [item._replace(target=_byte_target(layout, item.kind, item.target)) for item in wanted]


def _byte_target(layout: Layout, kind: Kind, target: memoryview) -> memoryview:
    expected_bytes = layout.payload_bytes(kind)
    if not expected_bytes:
        raise ValueError(f"this layout has no {kind.label} records")
    if target.readonly or not target.c_contiguous:
        raise ValueError(f"the target of a {kind.label} record is writable and contiguous")
    if target.nbytes != expected_bytes:
        raise ValueError(f"the target of a {kind.label} record has {expected_bytes} bytes; found {target.nbytes}")
    return target.cast("B")
