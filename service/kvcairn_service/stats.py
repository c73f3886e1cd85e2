"""Statistics: the store's totals and the service's counters, put into the words of the API. Pure."""

import time
from collections.abc import Iterable

from kvcairn_protocol.messages import KindStats, LayoutStats, ServiceStats, TenantStats
from kvcairn_service.counters import Lookups
from kvcairn_service.state import Service
from kvcairn_service.tenants import KeptTenant
from kvcairn_storage.prefixes import Usage


def tenant_stats(service: Service, tenant: KeptTenant) -> TenantStats:
    """One tenant's share of the store, and what it asked."""
    usages, lookups = service.store.usage(tenant.id), service.counters.of(tenant.id)
    return TenantStats(
        tenant=tenant.name,
        records=sum(each.records for each in usages),
        raw_bytes=sum(each.raw_bytes for each in usages),
        stored_bytes=sum(each.stored_bytes for each in usages),
        charged_bytes=sum(each.charged_bytes for each in usages),
        quota_bytes=tenant.document.quota_bytes,
        lookups=sum(each.lookups for each in lookups.values()),
        asked_tokens=sum(each.asked_tokens for each in lookups.values()),
        hit_tokens=sum(each.hit_tokens for each in lookups.values()),
        kinds=[kind_stats(each, now_seconds=time.time()) for each in _ordered(usages)],
        layouts=[layout_stats(layout, each) for layout, each in lookups.items()],
        pinned_records=sum(each.pinned_records for each in usages),
        pinned_bytes=sum(each.pinned_bytes for each in usages),
        pin_quota_bytes=service.pins.limit_bytes(tenant.document),
    )


def service_stats(service: Service) -> ServiceStats:
    """Every tenant's statistics and the store's own."""
    return ServiceStats(
        generation=service.generation,
        uptime_seconds=service.uptime_seconds,
        capacity_bytes=service.store.capacity_bytes,
        charged_bytes=service.store.charged_bytes,
        tenants=[tenant_stats(service, tenant) for tenant in service.tenants.all()],
    )


def _ordered(usages: Iterable[Usage]) -> list[Usage]:
    return sorted(usages, key=lambda each: (each.layout, each.kind))


def kind_stats(usage: Usage, *, now_seconds: float) -> KindStats:
    """One kind's totals; ages are None where there are no records."""
    there = usage.records > 0
    return KindStats(
        layout=usage.layout.hex(),
        kind=usage.kind.label,
        records=usage.records,
        raw_bytes=usage.raw_bytes,
        stored_bytes=usage.stored_bytes,
        reused_records=usage.reused_records,
        uses=usage.uses,
        evicted_records=usage.evicted_records,
        evicted_bytes=usage.evicted_bytes,
        expired_records=usage.expired_records,
        quarantined_records=usage.quarantined_records,
        deleted_records=usage.deleted_records,
        purged_records=usage.purged_records,
        oldest_seconds=_age(usage.oldest_created, now_seconds) if there else None,
        idle_seconds=_age(usage.latest_use, now_seconds) if there else None,
        pinned_records=usage.pinned_records,
        pinned_bytes=usage.pinned_bytes,
    )


def layout_stats(layout: bytes, lookups: Lookups) -> LayoutStats:
    """One layout's lookups."""
    return LayoutStats(
        layout=layout.hex(),
        lookups=lookups.lookups,
        asked_tokens=lookups.asked_tokens,
        hit_tokens=lookups.hit_tokens,
    )


def _age(moment: float | None, now_seconds: float) -> float | None:
    return None if moment is None else max(0.0, now_seconds - moment)
