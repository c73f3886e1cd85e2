"""Records in bulk: which are there, fetch, store, and report a bad one."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvcairn_protocol.messages import (
    ExistsAnswer,
    RecordsRequest,
    ReportAnswer,
    ReportRequest,
    StoreAnswer,
)
from kvcairn_service.auth import CallingTenant, caller_of
from kvcairn_service.bodies import check_type, open_body, read_json
from kvcairn_service.ingest import RECORD_TYPES, Upload
from kvcairn_service.openapi import problems, reads, reads_records, sends_records
from kvcairn_service.pace import pace_of
from kvcairn_service.routes.prefixes import check_count
from kvcairn_service.routes.service import Running
from kvcairn_service.send import RecordStream, Workers
from kvcairn_service.state import Service, record_key
from kvcairn_service.tenants import KeptTenant
from kvcairn_service.verify import quarantine_if_bad
from kvcairn_storage.store import RecordKey

router = APIRouter(tags=["records"], prefix="/v1")


@router.post("/records:exists", openapi_extra=reads(RecordsRequest), responses=problems(400, 408, 409, 413, 415, 422))
async def exist(request: Request, service: Running, tenant: CallingTenant) -> ExistsAnswer:
    """Which of these records are there; not a use."""
    keys, _ = await _asked(request, service, tenant)
    return ExistsAnswer(present=service.store.exists(keys))


@router.post(
    "/records:fetch",
    openapi_extra=reads(RecordsRequest),
    responses={
        **sends_records("The records in request order; what is not there is a header flagged missing"),
        **problems(400, 408, 409, 413, 415, 422),
    },
    response_class=Response,
)
async def fetch(request: Request, service: Running, tenant: CallingTenant) -> RecordStream:
    """The records, in request order, safe from eviction until they are sent."""
    keys, layout = await _asked(request, service, tenant)
    return RecordStream(
        store=service.store,
        layout=service.layouts.get(tenant.id, layout),
        keys=keys,
        counters=service.counters,
        pace=pace_of(service.settings),
        workers=Workers(service.senders, service.sending, tenant.id),
    )


async def _asked(request: Request, service: Service, tenant: KeptTenant) -> tuple[list[RecordKey], bytes]:
    asked = await read_json(request, RecordsRequest, service.settings)
    check_count(len(asked.records), service)
    layout = service.layouts.get(tenant.id, bytes.fromhex(asked.layout)).fingerprint
    await service.expire_idle(tenant)
    return [record_key(tenant, layout, each.kind, each.key) for each in asked.records], layout


@router.post(
    "/records:store",
    openapi_extra=reads_records("Whole records, one after the other"),
    responses=problems(400, 408, 413, 415, 507),
)
async def store(request: Request, service: Running, tenant: CallingTenant) -> StoreAnswer:
    """Store records; what the answer counts as stored is committed to disk. First writer wins."""
    check_type(request, RECORD_TYPES)
    settings = service.settings
    async with open_body(request, max_bytes=settings.max_body_bytes, pace=pace_of(settings)) as body:
        return await Upload(service=service, tenant=tenant, writer=caller_of(request).writer).run(body)


@router.post("/records:report", openapi_extra=reads(ReportRequest), responses=problems(400, 408, 409, 415, 422))
async def report(request: Request, service: Running, tenant: CallingTenant) -> ReportAnswer:
    """A reader found this record bad: verify it again, and serve it no more if it is."""
    asked = await read_json(request, ReportRequest, service.settings)
    layout = service.layouts.get(tenant.id, bytes.fromhex(asked.layout))
    key = record_key(tenant, layout.fingerprint, asked.kind, asked.key)
    is_bad = await service.decode(tenant.id, partial(quarantine_if_bad, service.store, key, layout))
    return ReportAnswer(quarantined=is_bad)
