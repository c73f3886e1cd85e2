"""Which values are encrypted, with which key, and which can be read: what the accounting asks. No cryptography here."""

from typing import Protocol

from kvcairn_storage.store import PLAIN


class Ciphers(Protocol):
    """May be called from any thread, under the owner's lock: every answer comes from memory."""

    def writes_with(self, tenant: str) -> bytes:
        """The id of the key that a new value of this tenant is encrypted with; PLAIN for none."""
        ...

    def reads(self, key_id: bytes) -> bool:
        """Whether values with this key's id can be read."""
        ...

    def note(self, key_id: bytes) -> None:
        """A value with this key's id is stored."""
        ...

    @property
    def has_lost(self) -> bool:
        """Whether there may be values that cannot be read."""
        ...


class PlainValues:
    """Nothing is encrypted."""

    has_lost = False

    def writes_with(self, tenant: str) -> bytes:  # noqa: ARG002 - see Ciphers
        return PLAIN

    def reads(self, key_id: bytes) -> bool:
        return key_id == PLAIN

    def note(self, key_id: bytes) -> None:
        pass


PLAIN_VALUES = PlainValues()
