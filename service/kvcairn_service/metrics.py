"""Metrics in Prometheus' format: what the store holds, read when asked, and how long each request took.

A registry of the application's own, so that two services in one process do not meet. Layout labels are the first 12
hex digits of the fingerprint.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvcairn_service.state import Service
from kvcairn_storage.prefixes import Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

LABELS = ("tenant", "layout", "kind")


class Metrics:
    """The registry of one application."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._durations = Histogram(
            "kvcairn_request_duration_seconds",
            "From a request's head to the end of its answer.",
            ("method", "route", "status"),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_StoreCollector(service))

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request; `status` 0: its client left before an answer began."""
        self._durations.labels(method=method, route=route, status=str(status)).observe(seconds)

    def render(self) -> bytes:
        """Everything in the text format."""
        return generate_latest(self._registry)


_BY_KIND: tuple[tuple[type[Metric], str, str, Callable[[Usage], float]], ...] = (
    (GaugeMetricFamily, "records", "Records stored.", lambda each: each.records),
    (GaugeMetricFamily, "raw_bytes", "Payload bytes once decoded.", lambda each: each.raw_bytes),
    (GaugeMetricFamily, "stored_bytes", "Header and payload bytes as kept.", lambda each: each.stored_bytes),
    (GaugeMetricFamily, "tenant_charged_bytes", "Bytes in whole pages.", lambda each: each.charged_bytes),
    (GaugeMetricFamily, "reused_records", "Records used since they were stored.", lambda each: each.reused_records),
    (GaugeMetricFamily, "pinned_records", "Records that pins keep.", lambda each: each.pinned_records),
    (GaugeMetricFamily, "pinned_bytes", "Bytes in whole pages that pins keep.", lambda each: each.pinned_bytes),
    (CounterMetricFamily, "evicted_records", "Evicted since the start.", lambda each: each.evicted_records),
    (CounterMetricFamily, "evicted_bytes", "Evicted since the start.", lambda each: each.evicted_bytes),
    (CounterMetricFamily, "expired_records", "Idle for too long.", lambda each: each.expired_records),
    (CounterMetricFamily, "quarantined_records", "Found bad.", lambda each: each.quarantined_records),
    (CounterMetricFamily, "purged_records", "Undone by an admin.", lambda each: each.purged_records),
)


class _StoreCollector(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_service()
        yield from self._of_the_door()
        yield from self._of_overload()
        yield from self._of_encryption()
        yield from self._by_kind()
        yield from self._lookups()

    def _of_the_service(self) -> Iterator[Metric]:
        service, counters = self._service, self._service.counters
        yield GaugeMetricFamily("kvcairn_capacity_bytes", "What may be charged.", service.store.capacity_bytes)
        yield GaugeMetricFamily("kvcairn_charged_bytes", "What is charged.", service.store.charged_bytes)
        yield GaugeMetricFamily("kvcairn_requests_in_flight", "Requests being answered.", counters.requests)
        yield GaugeMetricFamily("kvcairn_fetches_in_flight", "Fetches that hold records.", counters.holds)
        yield GaugeMetricFamily("kvcairn_held_records", "Records held by fetches.", service.store.held_records)
        yield GaugeMetricFamily("kvcairn_upload_memory_bytes", "Lent to uploads.", service.budget.used_bytes)
        yield CounterMetricFamily("kvcairn_received_bytes", "Record bytes received.", counters.received_bytes)
        yield CounterMetricFamily("kvcairn_sent_bytes", "Record bytes sent.", counters.sent_bytes)

    def _of_the_door(self) -> Iterator[Metric]:
        tls, failures = self._service.tls, self._service.audit.failures
        yield CounterMetricFamily("kvcairn_audit_failures", "Lines that the audit log's file did not take.", failures)
        if tls is not None:
            yield CounterMetricFamily("kvcairn_tls_handshakes_failed", "TLS handshakes without a result.", tls.failures)

    def _of_overload(self) -> Iterator[Metric]:
        service, refused = self._service, self._service.counters.refused_requests
        waiting = GaugeMetricFamily("kvcairn_waiting", "Who waits for a turn, or for upload memory.", labels=["what"])
        for what, count in service.waiting().items():
            waiting.add_metric([what], count)
        yield waiting
        yield CounterMetricFamily("kvcairn_refused_requests", "Answered 429 or 503 at the door.", refused)
        if (crowd := service.crowd) is not None:
            yield GaugeMetricFamily("kvcairn_connections", "Open connections.", len(crowd))
            yield CounterMetricFamily("kvcairn_closed_connections", "Idle ones closed for others.", crowd.made_way)
            yield CounterMetricFamily("kvcairn_refused_connections", "Turned away, with none idle.", crowd.refused)

    def _of_encryption(self) -> Iterator[Metric]:
        left, lost = self._service.encryption.left_records, self._service.encryption.lost_records
        yield GaugeMetricFamily("kvcairn_reencrypt_left_records", "To be encrypted with the new key.", left)
        yield GaugeMetricFamily("kvcairn_key_lost_records", "Encrypted with a key that is not here.", lost)

    def _by_kind(self) -> Iterator[Metric]:
        rows = [(name, each) for each in self._service.store.usage() if (name := self._name(each.tenant)) is not None]
        for family, name, text, value in _BY_KIND:
            metric = family(f"kvcairn_{name}", text, labels=LABELS)  # type: ignore[call-arg]
            for tenant, each in rows:
                metric.add_metric([tenant, each.layout.hex()[:12], each.kind.label], value(each))  # type: ignore[attr-defined]
            yield metric

    def _lookups(self) -> Iterator[Metric]:
        lookups = CounterMetricFamily("kvcairn_lookups", "Lookups.", labels=LABELS[:2])
        asked = CounterMetricFamily("kvcairn_asked_tokens", "Tokens asked for.", labels=LABELS[:2])
        hit = CounterMetricFamily("kvcairn_hit_tokens", "Tokens of runs found.", labels=LABELS[:2])
        for (tenant_id, layout), counted in self._service.counters.by_layout.items():
            name = self._name(tenant_id)
            if name is None:
                continue
            labels = [name, layout.hex()[:12]]
            lookups.add_metric(labels, counted.lookups)
            asked.add_metric(labels, counted.asked_tokens)
            hit.add_metric(labels, counted.hit_tokens)
        yield from (lookups, asked, hit)

    def _name(self, tenant_id: str) -> str | None:
        tenant = self._service.tenants.by_id(tenant_id)
        return tenant.name if tenant else None
