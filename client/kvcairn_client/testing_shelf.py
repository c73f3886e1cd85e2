"""What a fake service keeps, and how it answers: the API's verbs on a dictionary. No I/O."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, TypeAdapter

from kvcairn_client.faults import Answer, answer, problem
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Kind, Layout, parse_layout
from kvcairn_protocol.messages import (
    RECORDS_TYPE,
    ExistsAnswer,
    LookupAnswer,
    PrefixRequest,
    RecordsRequest,
    Rejected,
    ReportAnswer,
    ReportRequest,
    ServiceInfo,
    ServiceLimits,
    StoreAnswer,
    TenantStats,
    TouchAnswer,
)
from kvcairn_protocol.record import missing_record, parse_header, verify_record
from kvcairn_protocol.strategy import Anchored

Name = tuple[bytes, Kind, bytes]

_TOUCH: TypeAdapter[PrefixRequest | RecordsRequest] = TypeAdapter(PrefixRequest | RecordsRequest)

LIMITS = ServiceLimits(
    layouts_per_tenant=256,
    layout_bytes=256 << 10,
    keys_per_request=16_384,
    record_bytes=64 << 20,
    body_bytes=256 << 20,
)


@dataclass(slots=True)
class Shelf:
    """What is stored: records as they travel, by layout, kind and key. Thread-safe."""

    limits: ServiceLimits = LIMITS
    codec: CodecName = "auto"
    layouts: dict[str, Layout] = field(default_factory=dict)
    records: dict[Name, bytes] = field(default_factory=dict)
    reported: list[Name] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, method: str, path: str, body: bytes) -> Answer:
        """The honest answer to one request."""
        verb = _VERBS.get(path)
        with self._lock:
            if method == "PUT" and path.startswith("/v1/layouts/"):
                layout = parse_layout(body)
                self.layouts[layout.fingerprint.hex()] = layout
                return answer(201, "application/json", layout.canonical)
            return problem(404) if verb is None else verb(self, body)

    def forget(self) -> None:
        """Lose everything, as a service does that comes back with an empty directory."""
        with self._lock:
            self.layouts.clear()
            self.records.clear()

    def _service(self, _: bytes) -> Answer:
        info = ServiceInfo(
            name="kvcairn", version="fake", api=1, generation="0" * 32, open=True, limits=self.limits, features=[]
        )
        return _json(info)

    def _stats(self, _: bytes) -> Answer:
        sizes = [len(record) for record in self.records.values()]
        total = sum(sizes)
        stats = TenantStats(
            tenant="default", records=len(sizes), raw_bytes=total, stored_bytes=total, charged_bytes=total,
            quota_bytes=None, lookups=0, asked_tokens=0, hit_tokens=0, kinds=[], layouts=[],
        )  # fmt: skip
        return _json(stats)

    def _lookup(self, body: bytes) -> Answer:
        asked = PrefixRequest.model_validate_json(body)
        if (layout := self.layouts.get(asked.layout)) is None:
            return problem(409)
        keys = [bytes.fromhex(key) for key in asked.block_keys]
        run = next((i for i, key in enumerate(keys) if not self._has(layout, Kind.HISTORY, key)), len(keys))
        ends = [(i + 1) * layout.block_tokens for i in range(run) if self._has(layout, Kind.STATE, keys[i])]
        found = LookupAnswer(
            history_blocks=run, hit_tokens=run * layout.block_tokens, state_tokens=ends[::-1],
            strategy=Anchored(), codec=self.codec,
        )  # fmt: skip
        return _json(found)

    def _touch(self, body: bytes) -> Answer:
        asked = _TOUCH.validate_json(body)
        if asked.layout not in self.layouts:
            return problem(409)
        keys = asked.block_keys if isinstance(asked, PrefixRequest) else [ref.key for ref in asked.records]
        self.touched += keys
        return _json(TouchAnswer(touched=len(keys)))

    def _exists(self, body: bytes) -> Answer:
        asked = RecordsRequest.model_validate_json(body)
        if asked.layout not in self.layouts:
            return problem(409)
        return _json(ExistsAnswer(present=[name in self.records for name in _names(asked)]))

    def _fetch(self, body: bytes) -> Answer:
        asked = RecordsRequest.model_validate_json(body)
        if (layout := self.layouts.get(asked.layout)) is None:
            return problem(409)
        found = (self.records.get(name) or missing_record(layout, name[1], key=name[2]) for name in _names(asked))
        return answer(200, RECORDS_TYPE, b"".join(found))

    def _report(self, body: bytes) -> Answer:
        asked = ReportRequest.model_validate_json(body)
        self.reported.append((bytes.fromhex(asked.layout), Kind.from_label(asked.kind), bytes.fromhex(asked.key)))
        return _json(ReportAnswer(quarantined=True))

    def _store(self, body: bytes) -> Answer:
        stored = present = index = 0
        rejected: list[Rejected] = []
        rest = memoryview(body)
        while rest:
            header = parse_header(rest, max_raw_bytes=self.limits.record_bytes)
            record, rest = rest[: header.record_bytes], rest[header.record_bytes :]
            layout = self.layouts.get(header.fingerprint.hex())
            if layout is None:
                rejected.append(Rejected(index=index, key=header.key.hex(), reason="layout"))
            else:
                verify_record(record, layout, max_raw_bytes=self.limits.record_bytes)
                name = (header.fingerprint, header.kind, header.key)
                present += name in self.records
                stored += name not in self.records
                self.records.setdefault(name, bytes(record))
            index += 1
        return _json(StoreAnswer(stored=stored, present=present, rejected=rejected))

    def _has(self, layout: Layout, kind: Kind, key: bytes) -> bool:
        return (layout.fingerprint, kind, key) in self.records


_VERBS: dict[str, Callable[[Shelf, bytes], Answer]] = {
    "/v1/service": Shelf._service,
    "/v1/stats": Shelf._stats,
    "/v1/prefixes:lookup": Shelf._lookup,
    "/v1/prefixes:touch": Shelf._touch,
    "/v1/records:exists": Shelf._exists,
    "/v1/records:fetch": Shelf._fetch,
    "/v1/records:report": Shelf._report,
    "/v1/records:store": Shelf._store,
}


def _names(asked: RecordsRequest) -> list[Name]:
    fingerprint = bytes.fromhex(asked.layout)
    return [(fingerprint, Kind.from_label(ref.kind), bytes.fromhex(ref.key)) for ref in asked.records]


def _json(message: BaseModel) -> Answer:
    return answer(200, "application/json", message.model_dump_json().encode())
