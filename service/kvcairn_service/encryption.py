"""Encryption at rest: which tenant's values are encrypted, and with which key. docs/decisions/encryption.md"""

from dataclasses import dataclass, field
from pathlib import Path

from kvcairn_service.errors import SettingsError
from kvcairn_service.key_settings import FILE_VARIABLE, read_key_file
from kvcairn_service.tenants import KeptTenant, Tenants
from kvcairn_storage.keyring import KeyRing, parse_masters
from kvcairn_storage.store import PLAIN


@dataclass(slots=True)
class Encryption:
    """Keys and tenants together: a `Ciphers` for the store. Its answers may be asked for from any thread.

    left_records, lost_records: what the last sweep found to be rewritten, and not readable with these keys. changes:
    how often there was reason to sweep again.
    """

    ring: KeyRing
    tenants: Tenants
    file: Path | None = None
    left_records: int = 0
    lost_records: int = 0
    changes: int = 0
    _wanting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """SettingsError where a tenant wants what cannot be done: its records must not reach the disk as they are."""
        wanting = [tenant for tenant in self.tenants.all() if tenant.document.encrypt]
        self._wanting = {tenant.id for tenant in wanting}
        if wanting and not self.has_keys:
            raise SettingsError(
                f"the tenant {wanting[0].name!r} has encrypt on, and there is no key: set {FILE_VARIABLE}; if the old "
                "key is lost, make a new one (openssl rand -hex 32): the records of the old one are misses then"
            )

    @property
    def has_keys(self) -> bool:
        return bool(self.ring.current)

    @property
    def is_used(self) -> bool:
        """Whether anything is, or was, encrypted."""
        return self.has_keys or self.has_lost

    @property
    def has_lost(self) -> bool:
        """See Ciphers."""
        return bool(self.ring.lost)

    def writes_with(self, tenant: str) -> bytes:
        """See Ciphers."""
        kept = self.tenants.by_id(tenant)
        # One that was deleted a moment ago may have wanted it.
        return self.ring.current if kept is None or kept.document.encrypt else PLAIN

    def reads(self, key_id: bytes) -> bool:
        """See Ciphers."""
        return self.ring.reads(key_id)

    def note(self, key_id: bytes) -> None:
        """See Ciphers."""
        self.ring.note(key_id)

    def target(self, tenant: KeptTenant | None, key_id: bytes) -> bytes:
        """What a stored value shall be encrypted with: never less than it is, where its tenant wants it or did."""
        is_wanted = bool(key_id) or (tenant is not None and tenant.document.encrypt)
        return self.ring.current if is_wanted and self.has_keys else key_id

    def note_tenant(self, tenant: KeptTenant) -> None:
        """A tenant was changed: what it has stored plain is looked for once it wants encryption."""
        if tenant.document.encrypt and tenant.id not in self._wanting:
            self._note_change()
        self._wanting = {each.id for each in self.tenants.all() if each.document.encrypt}

    def _note_change(self) -> None:
        self.changes += 1

    def reload(self) -> bool:
        """Read the key file again; whether it has other keys. SettingsError, and the old ones stay, if it is bad."""
        if self.file is None:
            return False
        try:
            masters = parse_masters(read_key_file(self.file), str(self.file))
        except ValueError as error:
            raise SettingsError(f"{error}; the old keys stay") from None
        has_changed = self.ring.replace(masters)
        if has_changed:
            self._note_change()
        return has_changed
