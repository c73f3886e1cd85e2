"""What was asked since the service started: lookups by tenant and layout, and what is going on right now."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lookups:
    """Lookups of one layout. asked_tokens: tokens of all keys asked for; hit_tokens: of the runs found."""

    lookups: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0


@dataclass(slots=True)
class Counters:
    """Counted on the event loop alone. holds: fetches whose records are held from eviction at this moment.

    requests: being answered; requests_by_tenant: the same by tenant id, those with none left out. refused_requests:
    answered 429 or 503 by admission since the start.
    """

    by_layout: dict[tuple[str, bytes], Lookups] = field(default_factory=lambda: defaultdict(Lookups))
    requests_by_tenant: Counter[str] = field(default_factory=Counter)
    holds: int = 0
    requests: int = 0
    refused_requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def begin(self, tenant_id: str) -> None:
        """A request is being answered from now on."""
        self.requests += 1
        self.requests_by_tenant[tenant_id] += 1

    def end(self, tenant_id: str) -> None:
        """It has been."""
        self.requests -= 1
        self.requests_by_tenant[tenant_id] -= 1
        if not self.requests_by_tenant[tenant_id]:
            del self.requests_by_tenant[tenant_id]

    def note_received(self, size_bytes: int) -> None:
        self.received_bytes += size_bytes

    def note_lookup(self, tenant_id: str, fingerprint: bytes, *, asked_tokens: int, hit_tokens: int) -> None:
        counted = self.by_layout[tenant_id, fingerprint]
        counted.lookups += 1
        counted.asked_tokens += asked_tokens
        counted.hit_tokens += hit_tokens

    def of(self, tenant_id: str) -> dict[bytes, Lookups]:
        """One tenant's lookups by layout."""
        return {layout: counted for (tenant, layout), counted in self.by_layout.items() if tenant == tenant_id}

    def forget(self, tenant_id: str, fingerprint: bytes | None = None) -> None:
        """Drop the counts of a tenant, or of one of its layouts, that is gone."""
        gone = [key for key in self.by_layout if key[0] == tenant_id and fingerprint in (None, key[1])]
        for key in gone:
            del self.by_layout[key]
