"""The MAC keys of one client: from the caller, or from a file. docs/decisions/mac.md"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvcairn_protocol.keys import parse_keys
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.mac import (
    KEY_BYTES,
    MAC_IDENTITY,
    authenticated,
    check_mac_streams,
    is_authenticated,
    mac_identity,
)

VARIABLE = "KVCAIRN_MAC_KEY_FILE"


class MacKeys:
    """The first key signs; all of them are good for reading. Without any, nothing is authenticated. Immutable.

    Its repr shows no key.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        """ValueError, which does not repeat the key, for one that is too short."""
        for index, key in enumerate(keys):
            if len(key) < KEY_BYTES:
                raise ValueError(f"a MAC key has {KEY_BYTES} random bytes or more; key {index} has {len(key)}")
        self.keys = tuple(bytes(key) for key in keys)
        self._by_identity = {mac_identity(key): key for key in self.keys}

    def __repr__(self) -> str:
        return f"MacKeys({', '.join(self._by_identity)})"

    def authenticated(self, layout: Layout) -> Layout:
        """The layout under which records are stored: with a MAC of the first key, or as it is without a key."""
        return authenticated(layout, self.keys[0]) if self.keys else layout

    def of(self, layout: Layout, kinds: Sequence[Kind]) -> bytes | None:
        """The key that records of this layout and these kinds are signed with; None where they are not.

        ValueError where the layout and the keys do not fit: with a key, nothing is taken unauthenticated by mistake.
        """
        if not is_authenticated(layout):
            if self.keys:
                raise ValueError("this client has a MAC key, the layout has no MAC: use mac_keys.authenticated(layout)")
            return None
        key = self._by_identity.get(layout.identity[MAC_IDENTITY])
        if key is None:
            known = ", ".join(self._by_identity) or "none"
            raise ValueError(f"the layout is authenticated by {layout.identity[MAC_IDENTITY]}; this client has {known}")
        if Kind.WINDOW in kinds:
            raise ValueError("window records carry no MAC: with a MAC key they are neither stored nor fetched")
        check_mac_streams(layout)
        return key


NO_KEYS = MacKeys()


def mac_keys(
    given: bytes | Sequence[bytes] | None, path: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ
) -> MacKeys:
    """The keys that were given, those in the file, or in the file that the environment names; in this order.

    given: one key, or several of which the first signs; an empty sequence stands for no key whatever the environment
    says. ValueError for both, and for a file that cannot be read or holds something else.
    """
    if given is not None and path is not None:
        raise ValueError("mac_key and mac_key_file are both set; keep one")
    if given is not None:
        return MacKeys([given] if isinstance(given, bytes) else given)
    if path is not None:
        return MacKeys(read_keys(Path(path), "mac_key_file"))
    return MacKeys(read_keys(Path(environ[VARIABLE]), VARIABLE)) if environ.get(VARIABLE) else NO_KEYS


def read_keys(path: Path, name: str) -> list[bytes]:
    """The keys in a file; ValueError names what is wrong with it, and repeats nothing that is in it."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"{name}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: {path} is no text; it holds keys in hex, one a line") from None
    try:
        return parse_keys(text, str(path), least_bytes=KEY_BYTES)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
