"""One stored value, encrypted: AES-256-GCM with a key of its own, bound to the record's place. Pure.

    magic (4) | key id (8) | salt (12) | nonce (12) | ciphertext | tag (16)

The value's key is HMAC-SHA-256 of the salt under the tenant's key, so that salt and nonce together are 24 random bytes:
no number of records that a disk holds makes a repeated pair likely. All that stands in front of the ciphertext and the
record's key (tenant, layout, kind, key) are authenticated with it: a value that was changed or moved does not decrypt.
Why so: docs/decisions/encryption.md. The one module that imports cryptography.
"""

import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcairn_protocol.record import MAGIC as RECORD_MAGIC
from kvcairn_storage.errors import CipherError
from kvcairn_storage.keyring import KeyRing
from kvcairn_storage.rows import pack_key
from kvcairn_storage.store import CIPHER_BYTES, KEY_ID_BYTES, Bytes, RecordKey

MAGIC = b"ENC1"
SALT_BYTES = NONCE_BYTES = 12
TAG_BYTES = 16
FRONT_BYTES = len(MAGIC) + KEY_ID_BYTES + SALT_BYTES + NONCE_BYTES
_CONTEXT = b"kvcairn/encryption-value/1"
assert FRONT_BYTES + TAG_BYTES == CIPHER_BYTES  # noqa: S101 - what the accounting counts


def is_encrypted(value: Bytes) -> bool:
    """Whether a stored value is anything but a record as it travelled, which always begins in the same way."""
    return bytes(memoryview(value)[: len(RECORD_MAGIC)]) != RECORD_MAGIC


def encrypt(ring: KeyRing, key_id: bytes, key: RecordKey, record: Bytes) -> list[Bytes]:
    """The value for a record, in parts; KeyLost without that key."""
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    front = MAGIC + key_id + salt + nonce
    cipher = _cipher(ring.tenant_key(key_id, key.tenant), salt)
    return [front, cipher.encrypt(nonce, record, front + pack_key(key))]


def decrypt(ring: KeyRing, key: RecordKey, value: Bytes) -> bytes:
    """The record in a value; KeyLost without its key, CipherError where it was changed or is another record's."""
    view = memoryview(value)
    front = bytes(view[:FRONT_BYTES])
    if len(view) < CIPHER_BYTES or front[: len(MAGIC)] != MAGIC:
        raise CipherError("it is neither a record nor an encrypted one")
    key_id, salt, nonce = front[4:12], front[12:24], front[24:36]
    try:
        cipher = _cipher(ring.tenant_key(key_id, key.tenant), salt)
        return cipher.decrypt(nonce, view[FRONT_BYTES:], front + pack_key(key))
    except InvalidTag:
        raise CipherError(
            f"it does not decrypt with key {key_id.hex()}: it was changed, or is another record's"
        ) from None


def name_of(key: RecordKey, value: Bytes) -> bytes:
    """What tells an encrypted value from any other: its place, salt, nonce and tag."""
    view = memoryview(value)
    return pack_key(key) + bytes(view[:FRONT_BYTES]) + bytes(view[-TAG_BYTES:])


def _cipher(tenant_key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(hmac.digest(tenant_key, _CONTEXT + salt, "sha256"))
