"""Pins: which prefixes tenants keep from eviction, and until when; kept as documents, so that they survive a kill -9.

What a pin covers and what it takes is the store's to decide (kvcairn_storage/pinning.py). Here is who has which, under
which name, how much a tenant may have, and when it ends.
"""

import asyncio
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import Pin as PinAnswer
from kvcairn_protocol.messages import Tenant
from kvcairn_service.errors import LayoutUnknown, NoSpace, NotFound, RuleBroken, ServiceError, TooLarge, TooMany
from kvcairn_service.kept_pins import TABLE, KeptPin, pack_pin, place_of
from kvcairn_storage.pinning import Pinned
from kvcairn_storage.pins import Obstacle, Pin
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import DocumentStore

_log = logging.getLogger("kvcairn.pins")


class Pins:
    """Every tenant's pins. To be used from the event loop alone."""

    def __init__(
        self,
        documents: DocumentStore,
        store: PrefixStore,
        kept: list[KeptPin],
        *,
        max_pins: int,
        max_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """kept: what `load_pins` found; the store has been opened with it, and has let go what no longer fits."""
        self._documents = documents
        self._store = store
        self._max_pins = max_pins
        self._max_seconds = max_seconds
        self._clock = clock
        self._changing = asyncio.Lock()
        self._renewing: str | None = None
        self._by_tenant: dict[str, dict[str, KeptPin]] = defaultdict(dict)
        for each in kept:
            fits = store.pins.find(each.tenant, each.id) is not None or each.expires <= clock()
            self._by_tenant[each.tenant][each.id] = each if fits else _ended(each)

    def of(self, tenant_id: str) -> list[KeptPin]:
        """A tenant's pins, the oldest first; what has expired takes no room any more."""
        self._end_expired()
        now = self._clock()
        live = [each for each in self._by_tenant.get(tenant_id, {}).values() if each.expires > now]
        return sorted(live, key=lambda each: each.created)

    def get(self, tenant_id: str, pin_id: str) -> KeptPin:
        """One pin; NotFound where the tenant has none of that id, or it has expired."""
        found = self._by_tenant.get(tenant_id, {}).get(pin_id)
        if found is None or found.expires <= self._clock():
            raise NotFound(f"this tenant has no pin {pin_id}; GET /v1/pins lists those it has")
        return found

    def places(self) -> set[tuple[str, bytes]]:
        """Every tenant id and layout that a pin names."""
        return {(each.tenant, each.fingerprint) for each in self._all()}

    def limit_bytes(self, tenant: Tenant) -> int:
        """What this tenant's pins may take: what is set, or a tenth; never more than half of its quota."""
        most_bytes = self._store.pins.limit_bytes
        whole_bytes = self._store.capacity_bytes
        if tenant.quota_bytes is not None:
            whole_bytes, most_bytes = tenant.quota_bytes, min(most_bytes, tenant.quota_bytes // 2)
        wanted_bytes = whole_bytes // 10 if tenant.pin_quota_bytes is None else tenant.pin_quota_bytes
        return min(wanted_bytes, most_bytes)

    async def put(
        self,
        tenant_id: str,
        tenant: Tenant,
        layout: Layout,
        keys: list[bytes],
        *,
        ttl_seconds: float,
        name: str | None,
        is_wanted: Callable[[str, bytes], bool],
    ) -> tuple[KeptPin, bool]:
        """Pin what is stored of a prefix, committed on return; and whether the pin is new.

        In place of the tenant's pin of that name, or, without a name, of the same keys. NotFound where nothing is
        there; TooLarge, NoSpace, TooMany and RuleBroken where a limit is in the way: then nothing has changed.
        is_wanted: whether a tenant still has a layout; asked once nothing can be dropped meanwhile.
        """
        self._check(keys, ttl_seconds)
        pin_id = id_of(layout.fingerprint, keys, name=name)
        async with self._changing:
            known = {each.id for each in self.of(tenant_id)}
            if not is_wanted(tenant_id, layout.fingerprint):
                raise LayoutUnknown(f"layout {layout.fingerprint.hex()} was deleted meanwhile")
            if pin_id not in known and len(known) >= self._max_pins:
                raise TooMany(f"a tenant has at most {self._max_pins} pins; let one go, or wait until one expires")
            self._renewing = place_of(tenant_id, pin_id)  # what had this id may expire meanwhile, and must not end this
            try:
                kept = await self._pin(tenant_id, tenant, layout, keys, pin_id=pin_id, name=name, seconds=ttl_seconds)
                self._by_tenant[tenant_id][pin_id] = kept
            finally:
                self._renewing = None
            return kept, pin_id not in known

    async def remove(self, tenant_id: str, pin_id: str) -> None:
        """Let a pin's records go, like any others, from now on; NotFound if the tenant has none of that id."""
        async with self._changing:
            found = self.get(tenant_id, pin_id)
            await self._drop([found])

    async def remove_all(self, tenant_id: str, fingerprint: bytes | None = None) -> None:
        """Let go of all that a tenant has pinned, or of one layout of it."""
        async with self._changing:
            mine = self._by_tenant.get(tenant_id, {}).values()
            await self._drop([each for each in mine if fingerprint in (None, each.fingerprint)])

    async def drop_expired(self) -> None:
        """Forget what has expired, on the disk as well."""
        async with self._changing:
            await self._drop(self._end_expired())

    async def answer(self, kept: KeptPin) -> PinAnswer:
        """A pin as the API shows it."""
        pin = self._store.pins.find(kept.tenant, kept.id)
        present = await asyncio.to_thread(self._store.pins.present_records, pin) if pin else 0
        return PinAnswer(
            id=kept.id, name=kept.name, layout=kept.layout, history_blocks=kept.history_blocks,
            pinned_tokens=kept.history_blocks * kept.block_tokens, state_tokens=kept.state_tokens,
            records=kept.history_blocks + len(kept.state_tokens), present_records=present,
            charged_bytes=kept.charged_bytes, created=kept.created, expires=kept.expires,
        )  # fmt: skip

    def _check(self, keys: list[bytes], ttl_seconds: float) -> None:
        if not keys:
            raise RuleBroken("block_keys: a pin names at least the prefix's first block; found none")
        if ttl_seconds > self._max_seconds:
            raise RuleBroken(
                f"ttl_seconds: a pin lasts {self._max_seconds} seconds at most, found {ttl_seconds:g}; "
                f"pin again before it expires"
            )

    async def _pin(
        self, tenant_id: str, tenant: Tenant, layout: Layout, keys: list[bytes],
        *, pin_id: str, name: str | None, seconds: float,
    ) -> KeptPin:  # fmt: skip
        """Mark the records first, so that none is evicted before the pin's document is written."""
        limit_bytes = self.limit_bytes(tenant)
        done = await asyncio.to_thread(
            self._store.pins.pin, tenant=tenant_id, layout=layout.fingerprint, pin_id=pin_id, keys=keys,
            block_tokens=layout.block_tokens, limit_bytes=limit_bytes,
        )  # fmt: skip
        if done.pin is None or done.obstacle is not None:
            raise _refusal(done, limit_bytes=limit_bytes, used_bytes=self._store.pins.pinned_bytes(tenant_id))
        now = self._clock()
        kept = KeptPin(
            id=pin_id, tenant=tenant_id, name=name, layout=layout.fingerprint.hex(), block_tokens=layout.block_tokens,
            history_blocks=done.run.history_blocks, state_tokens=done.run.state_tokens,
            charged_bytes=done.pin.charged_bytes, created=now, expires=now + seconds,
        )  # fmt: skip
        await self._keep(kept, done.pin, replaced=done.replaced)
        return kept

    async def _keep(self, kept: KeptPin, pin: Pin, *, replaced: Pin | None) -> None:
        """Write the document of a pin that the store has; without it, the store has what it had before."""
        try:
            await asyncio.to_thread(self._documents.put_document, TABLE, kept.place, pack_pin(kept, pin))
        except BaseException:
            if replaced is None:
                self._store.pins.unpin(kept.tenant, kept.id)
            else:
                self._store.pins.put_back(replaced)
            raise

    def _end_expired(self) -> list[KeptPin]:
        """Let go of what has expired, without the disk: its document says that it has."""
        now = self._clock()
        expired = [each for each in self._all() if each.expires <= now and each.place != self._renewing]
        for each in expired:
            self._store.pins.unpin(each.tenant, each.id)
        return expired

    async def _drop(self, gone: list[KeptPin]) -> None:
        """The document goes first: a pin that was let go never comes back."""
        for each in gone:
            await asyncio.to_thread(self._documents.delete_document, TABLE, each.place)
            await asyncio.to_thread(self._store.pins.unpin, each.tenant, each.id)
            del self._by_tenant[each.tenant][each.id]
            if not self._by_tenant[each.tenant]:
                del self._by_tenant[each.tenant]

    def _all(self) -> Iterator[KeptPin]:
        return (each for mine in self._by_tenant.values() for each in mine.values())


def id_of(fingerprint: bytes, keys: list[bytes], *, name: str | None) -> str:
    """A pin's id: of its name or, without one, of the prefix it was asked for; so a request that is sent again makes no
    second pin."""
    told = b"name\0" + name.encode() if name is not None else b"prefix\0" + fingerprint + keys[-1]
    return hashlib.sha256(told).hexdigest()[:32]


def _ended(kept: KeptPin) -> KeptPin:
    _log.warning(
        "the pin %s of tenant id %s, %d bytes, no longer fits into what pins may take of the capacity; it is let go",
        kept.name or kept.id, kept.tenant, kept.charged_bytes,
    )  # fmt: skip
    return kept.model_copy(update={"expires": 0.0})


def _refusal(done: Pinned, *, limit_bytes: int, used_bytes: int) -> ServiceError:
    if done.pin is None:
        return NotFound("nothing of this prefix is stored, not even its first block; store it, then pin it")
    takes = f"this prefix takes {done.pin.charged_bytes} bytes in whole pages"
    if done.obstacle is Obstacle.NEVER and not limit_bytes:
        return TooLarge("pins are off for this tenant: its pin_quota_bytes is 0")
    if done.obstacle is Obstacle.NEVER:
        return TooLarge(f"{takes}, and this tenant's pins may take {limit_bytes}; pin fewer blocks, or raise the quota")
    if done.obstacle is Obstacle.QUOTA:
        taken = f"of {limit_bytes} that this tenant's pins may take, {used_bytes} are taken"
        return NoSpace(f"{takes}; {taken}: let a pin go, or wait until one expires")
    return NoSpace(f"{takes}, and all pins of the store together may take no more now; retry when some have expired")
