"""What was asked since the service started: lookups by tenant and layout, and what is going on right now."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lookups:
    """Lookups of one layout. asked_tokens: tokens of all keys asked for; hit_tokens: of the runs found."""

    lookups: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0


@dataclass(slots=True)
class Counters:
    """Counted on the event loop alone. holds: fetches whose records are held from eviction at this moment."""

    by_layout: dict[tuple[str, bytes], Lookups] = field(default_factory=lambda: defaultdict(Lookups))
    holds: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

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
