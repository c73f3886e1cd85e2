"""What a running service consists of, and how a request finds it."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from starlette.requests import Request

from kvcairn_protocol.layout import Kind
from kvcairn_service.audit import AuditLog
from kvcairn_service.counters import Counters
from kvcairn_service.crowd import Crowd
from kvcairn_service.encryption import Encryption
from kvcairn_service.fairness import Turns
from kvcairn_service.layouts import Layouts
from kvcairn_service.memory import MemoryBudget
from kvcairn_service.pins import Pins
from kvcairn_service.settings import Settings
from kvcairn_service.standing import StandingTokens
from kvcairn_service.tenants import KeptTenant, Tenants
from kvcairn_service.tls import ServerTls
from kvcairn_service.tokens import Tokens
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import RecordKey, RecordStore

SENDING_THREADS = max(3, min(8, (os.cpu_count() or 1) + 1))
"""Each is one response's for a twentieth of a second at most (pump.py), so that all responses get their turns. They
copy most of the time: more of them than processors move no more, and the loop waits for its own among them."""

T = TypeVar("T")

DECODING_PLACES = 2
"""A thread keeps the memory that it has once decoded in: these are never more than so many."""


class Phase(Enum):
    """Where the service stands: only while serving does it take requests."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True, kw_only=True)
class Service:
    """Everything that the routes share. To be used from the event loop alone; `store` may be called from any thread.

    generation: the data directory's own id, new for a new directory. starting: which request the loop takes up next,
    one a round, since most are answered in one go. decoding: bounds how many records are decoded at once, in threads
    of their own (decoders), since each takes a multiple of its size in memory; questions: how many long ones are parsed
    at once, since others wait meanwhile. senders: the threads that write records to sockets; sending: whose turn it is
    to have one.
    standing: the admin's and the metrics token. tls: of the TCP port; None where it speaks plain HTTP.
    fault: what is wrong with the store that only a restart mends.
    crowd: its open connections; None under a server that is not ours.
    """

    settings: Settings
    records: RecordStore
    store: PrefixStore
    tenants: Tenants
    tokens: Tokens
    layouts: Layouts
    pins: Pins
    encryption: Encryption
    counters: Counters
    budget: MemoryBudget
    generation: str
    standing: StandingTokens
    audit: AuditLog
    fault: Callable[[], str | None] = lambda: None
    tls: ServerTls | None = None
    crowd: Crowd | None = None
    phase: Phase = Phase.STARTING
    started_seconds: float = field(default_factory=time.monotonic)
    starting: Turns = field(default_factory=lambda: Turns(1))
    decoding: Turns = field(default_factory=lambda: Turns(DECODING_PLACES))
    questions: Turns = field(default_factory=lambda: Turns(1))
    sending: Turns = field(default_factory=lambda: Turns(SENDING_THREADS, spare=1))
    senders: Executor = field(default_factory=lambda: ThreadPoolExecutor(SENDING_THREADS, "kvcairn-send"))
    decoders: Executor = field(default_factory=lambda: ThreadPoolExecutor(DECODING_PLACES, "kvcairn-decode"))

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self.started_seconds

    async def decode(self, tenant_id: str, work: Callable[[], T]) -> T:
        """Let a thread do what takes a multiple of a record's size in memory; returns what it found."""
        async with self.decoding.of(tenant_id):
            return await asyncio.get_running_loop().run_in_executor(self.decoders, work)

    def waiting(self) -> dict[str, int]:
        """How many wait, and for what."""
        turns = {"starting": self.starting, "decoding": self.decoding, "questions": self.questions}
        counts = {what: each.waiting for what, each in (turns | {"sending": self.sending}).items()}
        return counts | {"upload_memory": self.budget.waiting}

    def close_threads(self) -> None:
        """Wait for the threads that send and decode, and end them."""
        self.senders.shutdown()
        self.decoders.shutdown()

    async def expire_idle(self, tenant: KeptTenant) -> None:
        """Drop what the tenant has not used for its ttl, so that no request sees it; a no-op without a ttl."""
        ttl_seconds = tenant.document.ttl_seconds
        if ttl_seconds is not None:
            await asyncio.to_thread(self.store.expire, tenant=tenant.id, idle_seconds=ttl_seconds)

    async def drop_tenant(self, tenant_id: str) -> None:
        """Drop all that is kept for a tenant that exists no more: tokens first, so that nobody adds to the rest."""
        await self.tokens.revoke_all(tenant_id)
        await self.layouts.remove_all(tenant_id)
        await self.pins.remove_all(tenant_id)
        await asyncio.to_thread(self.store.drop, tenant=tenant_id)
        self.counters.forget(tenant_id)

    def is_wanted(self, tenant_id: str, fingerprint: bytes) -> bool:
        """Whether records of this tenant and layout may be there at all."""
        return self.tenants.by_id(tenant_id) is not None and self.layouts.find(tenant_id, fingerprint) is not None

    async def drop_unwanted(self, tenant_id: str, fingerprints: Iterable[bytes]) -> None:
        """Take back what an upload committed while its tenant or layout was being deleted."""
        for fingerprint in fingerprints:
            if not self.is_wanted(tenant_id, fingerprint):
                await asyncio.to_thread(self.store.drop, tenant=tenant_id, layout=fingerprint)


async def sweep_orphans(service: Service) -> None:
    """Drop what a kill in the middle of a deletion has left.

    A tenant's own document goes first, then its tokens and layouts, its records last; a layout goes before its records.
    """
    for tenant_id in service.tokens.tenants() | service.layouts.tenants():
        if service.tenants.by_id(tenant_id) is None:
            await service.drop_tenant(tenant_id)
    for tenant_id, fingerprint in service.pins.places():
        if not service.is_wanted(tenant_id, fingerprint):
            await service.pins.remove_all(tenant_id, fingerprint)
    for usage in service.store.usage():
        await service.drop_unwanted(usage.tenant, [usage.layout])


async def service_of(request: Request) -> Service:
    """Dependency: the service that a request came to.

    A coroutine, as every dependency here: FastAPI sends plain functions to a thread, at half a millisecond each.
    """
    found: Service = request.app.state.service
    return found


def record_key(tenant: KeptTenant, layout: bytes, kind: str, key: str) -> RecordKey:
    """A record's place from the words of a request, which its model has checked."""
    return RecordKey(tenant.id, layout, Kind.from_label(kind), bytes.fromhex(key))
