"""House: one tenant of the model, by what its admin and its own calls were answered."""

from dataclasses import dataclass, field
from typing import Any

DEFAULTS: dict[str, Any] = {
    "strategy": {"kind": "anchored"}, "codec": "auto", "quota_bytes": None, "ttl_seconds": None,
}  # fmt: skip


@dataclass(slots=True)
class Asked:
    """Lookups of one layout since the service started."""

    lookups: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0


@dataclass(slots=True)
class House:
    """number: the tenant's own, never used again. token: the one that is never revoked; tokens: the others, by id."""

    number: int
    token: str
    settings: dict[str, Any]
    tokens: dict[str, str] = field(default_factory=dict)
    revoked: list[str] = field(default_factory=list)
    layouts: set[bytes] = field(default_factory=set)
    asked: dict[bytes, Asked] = field(default_factory=dict)
