"""The keys that values are encrypted with: the first writes, all of them read. Immutable keys, a list that changes.

What is derived, and why: docs/decisions/encryption.md.
"""

import hmac
from collections.abc import Sequence
from functools import lru_cache

from kvcairn_protocol.keys import parse_keys
from kvcairn_storage.errors import KeyLost
from kvcairn_storage.store import KEY_ID_BYTES, PLAIN

MASTER_BYTES = 32
TENANTS = 1024
_ID_CONTEXT, _TENANT_CONTEXT = b"kvcairn/encryption-id/1", b"kvcairn/encryption-tenant/1\0"


class KeyRing:
    """Master keys by their ids. Thread-safe. Its repr shows no key."""

    def __init__(self, masters: Sequence[bytes] = ()) -> None:
        """masters: MASTER_BYTES each."""
        self._by_id: dict[bytes, bytes] = {}
        self._seen: set[bytes] = set()
        self.replace(masters)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key_id.hex() for key_id in self._by_id)})"

    @property
    def current(self) -> bytes:
        """The id of the key that writes; PLAIN without any."""
        return next(iter(self._by_id), PLAIN)

    @property
    def ids(self) -> list[bytes]:
        return list(self._by_id)

    @property
    def lost(self) -> set[bytes]:
        """Ids of keys that values were found to be encrypted with, and that are not here."""
        return {key_id for key_id in self._seen if key_id not in self._by_id}

    def replace(self, masters: Sequence[bytes]) -> bool:
        """Take other keys from now on; whether they are others. ValueError for one of another length."""
        for master in masters:
            if len(master) != MASTER_BYTES:
                raise ValueError(f"an encryption key has {MASTER_BYTES} bytes; found one of {len(master)}")
        found = {key_id_of(master): master for master in masters}
        before, self._by_id = self._by_id, found
        self._seen.update(before)
        return list(before) != list(found)

    def note(self, key_id: bytes) -> None:
        """A value with this key's id is stored."""
        self._seen.add(key_id)

    def reads(self, key_id: bytes) -> bool:
        return not key_id or key_id in self._by_id

    def tenant_key(self, key_id: bytes, tenant: str) -> bytes:
        """What a tenant's values are encrypted with, 32 bytes; KeyLost without the master key of that id."""
        master = self._by_id.get(key_id)
        if master is None:
            raise KeyLost(f"it is encrypted with key {key_id.hex()}, which is not among the {len(self._by_id)} given")
        return _tenant_key(master, tenant)


def key_id_of(master: bytes) -> bytes:
    """What stands for a key in values and messages; tells nothing of it."""
    return hmac.digest(master, _ID_CONTEXT, "sha256")[:KEY_ID_BYTES]


def parse_masters(text: str, where: str) -> list[bytes]:
    """Master keys in hex, one a line; ValueError, which repeats none of them, for anything else."""
    return parse_keys(text, where, least_bytes=MASTER_BYTES, most_bytes=MASTER_BYTES)


@lru_cache(maxsize=TENANTS)
def _tenant_key(master: bytes, tenant: str) -> bytes:
    """The expanding half of HKDF (RFC 5869), one block: the master is uniform, and needs no extracting."""
    return hmac.digest(master, _TENANT_CONTEXT + tenant.encode() + b"\x01", "sha256")
