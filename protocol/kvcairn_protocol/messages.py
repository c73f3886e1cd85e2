"""The JSON messages of the REST API, one model each; the client and the service read and write the same classes.

API: docs/wire.md ("HTTP"). Requests refuse unknown fields; answers are read leniently, so that an older client
understands a newer service.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.errors import Reason
from kvcairn_protocol.layout import KindLabel as KindLabel  # noqa: PLC0414 - part of the messages, too
from kvcairn_protocol.strategy import Anchored, Strategy

RECORDS_TYPE = "application/vnd.kvcairn.records"
PROBLEM_TYPE = "application/problem+json"

Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="32 bytes as 64 lower-case hex digits")]
TenantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Amount = Annotated[int, Field(ge=0)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RecordRef(_Request):
    """One record of the layout that the request names."""

    kind: KindLabel
    key: Hex32


class PrefixRequest(_Request):
    """Lookup and touch: the keys of a prompt's complete blocks, in order."""

    layout: Hex32
    block_keys: list[Hex32]


class RecordsRequest(_Request):
    """Exists, fetch and touch: records by kind and key."""

    layout: Hex32
    records: list[RecordRef]


class ReportRequest(_Request):
    """A reader found this record bad."""

    layout: Hex32
    kind: KindLabel
    key: Hex32


class TenantSettings(_Request):
    """What may be set for a tenant; PUT takes defaults for what is left out, PATCH keeps what stands."""

    strategy: Strategy = Anchored()
    codec: CodecName = "auto"
    quota_bytes: Annotated[int, Field(ge=1)] | None = None
    ttl_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class TenantChange(TenantSettings):
    """The body of PUT and PATCH: a document as GET answers it may be sent back; its name must be the path's."""

    name: TenantName | None = None

    @property
    def settings(self) -> TenantSettings:
        """What the body names, without the name; the rest has its defaults and counts as not named."""
        return TenantSettings(**{field: getattr(self, field) for field in self.model_fields_set - {"name"}})


class Tenant(TenantSettings):
    """A tenant's document, as GET, PUT and PATCH answer it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: TenantName


class Tenants(_Answer):
    tenants: list[Tenant]


class TokenCreated(_Answer):
    """A new token; the only time that its text is shown."""

    id: str
    token: str


class TokenInfo(_Answer):
    id: str
    created: float


class Tokens(_Answer):
    tokens: list[TokenInfo]


class ServiceLimits(_Answer):
    """What a request may not exceed; sizes in bytes."""

    layouts_per_tenant: int
    layout_bytes: int
    keys_per_request: int
    record_bytes: int
    body_bytes: int


class ServiceInfo(_Answer):
    """What a client needs to know first.

    tenant_id: of the caller's tenant, never re-used; None from a service that is older than this field.
    """

    name: str
    version: str
    api: int
    generation: str
    open: bool
    limits: ServiceLimits
    features: list[str]
    tenant_id: str | None = None


class LookupAnswer(_Answer):
    """The longest run from the first key, and every stored state inside it, deepest first."""

    history_blocks: int
    hit_tokens: int
    state_tokens: list[int]
    strategy: Strategy
    codec: CodecName


class TouchAnswer(_Answer):
    touched: int


class ExistsAnswer(_Answer):
    present: list[bool]


class Rejected(_Answer):
    """One record that was not stored; key None where the framing was lost."""

    index: int
    key: str | None
    reason: Reason


class StoreAnswer(_Answer):
    stored: int
    present: int
    rejected: list[Rejected]


class ReportAnswer(_Answer):
    quarantined: bool


class LayoutEntry(_Answer):
    fingerprint: str
    model: str
    block_tokens: int
    layers: int


class Layouts(_Answer):
    layouts: list[LayoutEntry]


class KindStats(_Answer):
    """Records of one kind and layout; ages in seconds, None where there are no records.

    stored_bytes: headers and payloads as kept; raw_bytes: payloads alone, decoded. reused_records: fetched or touched
    since they were stored. What was evicted, expired, quarantined or deleted is counted since the service started.
    """

    layout: str
    kind: KindLabel
    records: Amount
    raw_bytes: Amount
    stored_bytes: Amount
    reused_records: Amount
    uses: Amount
    evicted_records: Amount
    evicted_bytes: Amount
    expired_records: Amount
    quarantined_records: Amount
    deleted_records: Amount = 0
    oldest_seconds: float | None
    idle_seconds: float | None


class LayoutStats(_Answer):
    """Lookups of one layout since the service started."""

    layout: str
    lookups: Amount
    asked_tokens: Amount
    hit_tokens: Amount


class TenantStats(_Answer):
    """A tenant's share of the store. charged_bytes: what counts against the quota (whole pages, headers included)."""

    tenant: str
    records: Amount
    raw_bytes: Amount
    stored_bytes: Amount
    charged_bytes: Amount
    quota_bytes: int | None
    lookups: Amount
    asked_tokens: Amount
    hit_tokens: Amount
    kinds: list[KindStats]
    layouts: list[LayoutStats]


class ServiceStats(_Answer):
    """Every tenant's statistics, and the store's own (admin)."""

    generation: str
    uptime_seconds: float
    capacity_bytes: Amount
    charged_bytes: Amount
    tenants: list[TenantStats]


class Problem(_Answer):
    """RFC 9457. `detail` names what was wrong and what would be right."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = None
