"""Tenants: who may store what, and how; kept as documents, so that they survive a kill -9.

A tenant's records live under its id, which is never used again: a tenant deleted and made anew under the same name
sees nothing of the old one. Reads come from memory; changes are committed to disk before they can be seen.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable

from pydantic import BaseModel, ConfigDict

from kvcairn_protocol.messages import Tenant, TenantSettings
from kvcairn_service.errors import InUse, NotFound
from kvcairn_storage.store import DocumentStore

TABLE = "tenants"
DEFAULT = "default"


class KeptTenant(BaseModel):
    """A tenant as it is kept: `id` names its records, `document` is what the API shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    document: Tenant

    @property
    def name(self) -> str:
        return self.document.name


Decide = Callable[[KeptTenant | None], TenantSettings]
"""Called with the tenant as it is, None for a new one; answers what it shall be. Must not wait."""


class Tenants:
    """Every tenant, by name and by id. To be used from the event loop alone."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._by_name: dict[str, KeptTenant] = {}
        self._by_id: dict[str, KeptTenant] = {}
        self._changing = asyncio.Lock()
        for data in documents.documents(TABLE).values():
            self._remember(KeptTenant.model_validate_json(data))
        if DEFAULT not in self._by_name:
            fresh = KeptTenant(id=secrets.token_hex(8), document=Tenant(name=DEFAULT))
            documents.put_document(TABLE, DEFAULT, fresh.model_dump_json().encode())
            self._remember(fresh)

    def _remember(self, tenant: KeptTenant) -> None:
        self._by_name[tenant.name] = tenant
        self._by_id[tenant.id] = tenant

    @property
    def are_several(self) -> bool:
        """Whether there is anybody beside `default`."""
        return len(self._by_id) > 1

    @property
    def default(self) -> KeptTenant:
        return self._by_name[DEFAULT]

    def get(self, name: str) -> KeptTenant:
        """The tenant of that name; NotFound for an unknown one."""
        found = self._by_name.get(name)
        if found is None:
            raise NotFound(f"there is no tenant {name!r}")
        return found

    def by_id(self, tenant_id: str) -> KeptTenant | None:
        return self._by_id.get(tenant_id)

    def all(self) -> list[KeptTenant]:
        return sorted(self._by_name.values(), key=lambda each: each.name)

    async def change(self, name: str, decide: Decide) -> KeptTenant:
        """Make the tenant, or change an existing one, to the settings that `decide` answers; committed on return.

        Changes come one after the other, so that none is lost. What `decide` raises goes through and changes nothing.
        """
        async with self._changing:
            old = self._by_name.get(name)
            document = Tenant(name=name, **dict(decide(old)))
            kept = KeptTenant(id=old.id if old else secrets.token_hex(8), document=document)
            await asyncio.to_thread(self._documents.put_document, TABLE, name, kept.model_dump_json().encode())
            self._remember(kept)
            return kept

    @contextlib.asynccontextmanager
    async def unchanged(self, tenant_id: str) -> AsyncIterator[KeptTenant]:
        """The tenant as it is and stays while the block runs; NotFound where it is gone.

        Whatever is kept for a tenant or depends on its settings is written inside such a block.
        """
        async with self._changing:
            kept = self._by_id.get(tenant_id)
            if kept is None:
                raise NotFound("this tenant was deleted meanwhile")
            yield kept

    async def remove(self, name: str) -> KeptTenant:
        """Forget the tenant; its records, layouts and tokens are the caller's to drop."""
        if name == DEFAULT:
            raise InUse(f"the tenant {DEFAULT!r} always exists; delete its layouts to drop its records")
        async with self._changing:
            kept = self.get(name)
            await asyncio.to_thread(self._documents.delete_document, TABLE, name)
            del self._by_name[name], self._by_id[kept.id]
            return kept


def merge(old: Tenant, changes: TenantSettings) -> TenantSettings:
    """The old settings with those that `changes` names; a strategy is replaced whole."""
    named = {field: getattr(changes, field) for field in changes.model_fields_set}
    kept = {field: getattr(old, field) for field in TenantSettings.model_fields}
    return TenantSettings(**{**kept, **named})
