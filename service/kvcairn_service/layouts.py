"""Registered layouts, by tenant and fingerprint; kept as canonical documents.

A record can be stored only under a registered layout, since the layout says what its payload must be.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import Kind, Layout, parse_layout
from kvcairn_protocol.messages import LayoutEntry
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero, check_strategy
from kvcairn_service.errors import LayoutUnknown, Malformed, NotFound, RuleBroken, TooMany
from kvcairn_storage.store import DocumentStore

TABLE = "layouts"


class Layouts:
    """Every tenant's layouts. To be used from the event loop alone, but for `find`, which any thread may call."""

    def __init__(self, documents: DocumentStore, *, max_layouts: int) -> None:
        self._documents = documents
        self._max_layouts = max_layouts
        self._changing = asyncio.Lock()
        self._by_tenant: dict[str, dict[bytes, Layout]] = defaultdict(dict)
        for name, data in documents.documents(TABLE).items():
            layout = parse_layout(data)
            self._by_tenant[name.split("/")[0]][layout.fingerprint] = layout

    def find(self, tenant_id: str, fingerprint: bytes) -> Layout | None:
        return self._by_tenant.get(tenant_id, {}).get(fingerprint)

    def get(self, tenant_id: str, fingerprint: bytes) -> Layout:
        """The layout that a request names in its body; LayoutUnknown (409) if it is not registered."""
        found = self.find(tenant_id, fingerprint)
        if found is None:
            raise LayoutUnknown(
                f"layout {fingerprint.hex()} is not registered; PUT /v1/layouts/{fingerprint.hex()} first"
            )
        return found

    def named(self, tenant_id: str, fingerprint: bytes) -> Layout:
        """The layout that a request names as the thing it wants; NotFound (404) if it is not registered."""
        found = self.find(tenant_id, fingerprint)
        if found is None:
            raise NotFound(f"layout {fingerprint.hex()} is not registered")
        return found

    def of(self, tenant_id: str) -> list[Layout]:
        return list(self._by_tenant.get(tenant_id, {}).values())

    def tenants(self) -> set[str]:
        return {tenant for tenant, layouts in self._by_tenant.items() if layouts}

    async def put(self, tenant_id: str, layout: Layout) -> bool:
        """Register; True if it is new. TooMany where the tenant has as many as it may."""
        name = _name(tenant_id, layout.fingerprint)
        async with self._changing:
            mine = self._by_tenant[tenant_id]
            if layout.fingerprint in mine:
                return False
            if len(mine) >= self._max_layouts:
                raise TooMany(f"a tenant has at most {self._max_layouts} layouts; delete one that is no longer used")
            await asyncio.to_thread(self._documents.put_document, TABLE, name, layout.canonical)
            mine[layout.fingerprint] = layout
            return True

    async def remove(self, tenant_id: str, fingerprint: bytes) -> None:
        """Forget one layout; its records are the caller's to drop. NotFound if it is not registered."""
        async with self._changing:
            self.named(tenant_id, fingerprint)
            await asyncio.to_thread(self._documents.delete_document, TABLE, _name(tenant_id, fingerprint))
            del self._by_tenant[tenant_id][fingerprint]

    async def remove_all(self, tenant_id: str) -> None:
        for layout in self.of(tenant_id):
            await self.remove(tenant_id, layout.fingerprint)
        self._by_tenant.pop(tenant_id, None)


def entry(layout: Layout) -> LayoutEntry:
    """A layout's line in the list."""
    return LayoutEntry(
        fingerprint=layout.fingerprint.hex(), model=layout.model, block_tokens=layout.block_tokens, layers=layout.layers
    )


def _name(tenant_id: str, fingerprint: bytes) -> str:
    return f"{tenant_id}/{fingerprint.hex()}"


def read_layout(document: bytes, *, fingerprint: bytes, max_record_bytes: int) -> Layout:
    """Parse and check what a client wants to register.

    Malformed: no JSON. LayoutError: a broken rule. RuleBroken: another fingerprint than the document's, or a record
    that would be over the limit.
    """
    layout = _parse(document)
    if layout.fingerprint != fingerprint:
        raise RuleBroken(
            f"fingerprint: this layout hashes to {layout.fingerprint.hex()}, not to {fingerprint.hex()}; "
            f"it is the SHA-256 of the canonical JSON"
        )
    for kind in Kind:
        _check_size(layout, kind, max_record_bytes=max_record_bytes)
    return layout


def _parse(document: bytes) -> Layout:
    try:
        text = document.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"json: the layout is not UTF-8: {error}") from None
    try:
        return parse_layout(text)
    except LayoutError as error:
        if error.rule == "json":
            raise Malformed(str(error)) from None
        raise


def _check_size(layout: Layout, kind: Kind, *, max_record_bytes: int) -> None:
    size_bytes = layout.payload_bytes(kind)
    if size_bytes > max_record_bytes:
        limit = f"at most {max_record_bytes} are allowed"
        raise RuleBroken(f"streams: a {kind.label} record of this layout has {size_bytes} bytes, {limit}")


def check_strategies(strategy: Full | Periodic | Zero | Anchored, layouts: Iterable[Layout]) -> None:
    """Refuse a strategy that cannot work with one of a tenant's layouts; StrategyError says which."""
    for layout in layouts:
        check_strategy(strategy, layout)
