"""The JSON messages of the REST API, one model each; the client and the service read and write the same classes.

API: docs/wire.md ("HTTP"). Requests refuse unknown fields; answers are read leniently, so that an older client
understands a newer service.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.errors import Reason
from kvcairn_protocol.layout import MAX_INTEGER
from kvcairn_protocol.layout import KindLabel as KindLabel  # noqa: PLC0414 - part of the messages, too
from kvcairn_protocol.strategy import Anchored, Strategy

RECORDS_TYPE = "application/vnd.kvcairn.records"
PROBLEM_TYPE = "application/problem+json"

Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="32 bytes as 64 lower-case hex digits")]
Keys = Annotated[list[Hex32], FailFast()]
"""One bad key is enough to say so: a message about each of a million would take seconds and gigabytes to make."""

TenantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
PinName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
PinId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="32 lower-case hex digits")]
WriterId = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,32}$", description="a token's id, admin, open or unknown")]
Moment = Annotated[float, Field(ge=0, allow_inf_nan=False, description="seconds since 1970")]
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
    block_keys: Keys


class PinRequest(_Request):
    """Pin the stored part of a prefix for so long; under the same name, or without one for the same keys, anew."""

    layout: Hex32
    block_keys: Keys
    ttl_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    name: PinName | None = None


class RecordsRequest(_Request):
    """Exists, fetch and touch: records by kind and key."""

    layout: Hex32
    records: Annotated[list[RecordRef], FailFast()]


class ReportRequest(_Request):
    """A reader found this record bad."""

    layout: Hex32
    kind: KindLabel
    key: Hex32


class PurgeRequest(_Request):
    """Delete what was stored in [since, until), by this writer, of this layout; what is left out is not asked about.

    since, until: seconds since 1970, by the service's clock. descendants: whether the records that were computed from
    those go with them, whoever stored them.
    """

    tenant: TenantName
    layout: Hex32 | None = None
    writer: WriterId | None = None
    since: Moment | None = None
    until: Moment | None = None
    descendants: bool = True
    dry_run: bool = False

    @model_validator(mode="after")
    def _name_something(self) -> Self:
        if (self.layout, self.writer, self.since, self.until) == (None, None, None, None):
            raise ValueError("name a layout, a writer, since or until; since 0 is all that the tenant has")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"since is before until; found {self.since} and {self.until}")
        return self


class TenantSettings(_Request):
    """What may be set for a tenant; PUT takes defaults for what is left out, PATCH keeps what stands."""

    strategy: Strategy = Anchored()
    codec: CodecName = "auto"
    quota_bytes: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    ttl_seconds: Annotated[float, Field(gt=0, le=MAX_INTEGER, allow_inf_nan=False)] | None = None
    pin_quota_bytes: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None = None
    encrypt: bool = False


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
    """What a request may not exceed; sizes in bytes. The limits of pins are 0 from a service that has none."""

    layouts_per_tenant: int
    layout_bytes: int
    keys_per_request: int
    record_bytes: int
    body_bytes: int
    pins_per_tenant: int = 0
    pin_seconds: int = 0


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


class Pin(_Answer):
    """A pinned prefix. created (or renewed), expires: seconds since 1970.

    history_blocks, pinned_tokens, state_tokens: what was pinned then, as in a lookup. charged_bytes: whole pages, each
    pin's own, though records of two pins take room once. records, present_records: how many were pinned, and how many
    of them are there and kept now; fewer after some were deleted or found bad.
    """

    id: PinId
    name: str | None
    layout: str
    history_blocks: Amount
    pinned_tokens: Amount
    state_tokens: list[int]
    records: Amount
    present_records: Amount
    charged_bytes: Amount
    created: float
    expires: float


class Pins(_Answer):
    """A tenant's pins. pinned_bytes: what they take of pin_quota_bytes, the limit in force."""

    pins: list[Pin]
    pinned_bytes: Amount
    pin_quota_bytes: Amount


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


class PurgeAnswer(_Answer):
    """What was deleted, or would be; descendants: of these, records that were named by nothing but their ancestors.

    stored_bytes: headers included.
    """

    records: Amount
    descendants: Amount
    stored_bytes: Amount


class Writer(_Answer):
    """One writer's records that are there. first_stored, last_stored: seconds since 1970."""

    writer: str
    records: Amount
    stored_bytes: Amount
    first_stored: float
    last_stored: float


class Writers(_Answer):
    """A tenant's writers, the last to store first."""

    writers: list[Writer]


class RecordInfo(_Answer):
    """What is known of a record beside its bytes. stored, last_used: seconds since 1970; stored_bytes: with header."""

    writer: str
    stored: float
    last_used: float
    uses: Amount
    position: Amount
    parent: str
    stored_bytes: Amount


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
    since they were stored. What was evicted, expired, quarantined, deleted or purged is counted since the service
    started.
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
    purged_records: Amount = 0
    oldest_seconds: float | None
    idle_seconds: float | None
    pinned_records: Amount = 0
    pinned_bytes: Amount = 0


class LayoutStats(_Answer):
    """Lookups of one layout since the service started."""

    layout: str
    lookups: Amount
    asked_tokens: Amount
    hit_tokens: Amount


class TenantStats(_Answer):
    """A tenant's share of the store. charged_bytes: what counts against the quota (whole pages, headers included).

    pinned_records, pinned_bytes: those of them that pins keep; pin_quota_bytes: what pins may take, as in force.
    """

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
    pinned_records: Amount = 0
    pinned_bytes: Amount = 0
    pin_quota_bytes: Amount = 0


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
