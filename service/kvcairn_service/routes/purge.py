"""Undoing a faulty writer: who stored what, and deleting it with all that was computed from it. The admin's."""

import asyncio
import math
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from kvcairn_protocol.messages import (
    Hex32,
    KindLabel,
    PurgeAnswer,
    PurgeRequest,
    RecordInfo,
    TenantName,
    Writer,
    Writers,
)
from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_service.audited import describe
from kvcairn_service.auth import admin_of
from kvcairn_service.bodies import read_json
from kvcairn_service.errors import NotFound
from kvcairn_service.openapi import problems, reads
from kvcairn_service.routes.service import Running
from kvcairn_service.state import Service, record_key
from kvcairn_storage.purge import Selection

router = APIRouter(tags=["writers"], prefix="/v1", dependencies=[Depends(admin_of)])

Name = Annotated[TenantName, Path(description="the tenant's name")]


@router.post("/records:purge", openapi_extra=reads(PurgeRequest), responses=problems(400, 404, 408, 413, 415, 422))
async def purge_records(request: Request, service: Running) -> PurgeAnswer:
    """Delete a tenant's records by layout, writer and time stored, and what was computed from them; committed.

    With dry_run nothing is deleted, and the answer says what would be.
    """
    asked = await read_json(request, PurgeRequest, service.settings)
    describe(request, **asked.model_dump(exclude_none=True))
    selection, purging = _selection(asked, service), service.store.purging
    purged = await asyncio.to_thread(purging.preview if asked.dry_run else purging.purge, selection)
    answer = PurgeAnswer(records=purged.records, descendants=purged.descendants, stored_bytes=purged.stored_bytes)
    describe(request, **answer.model_dump())
    return answer


def _selection(asked: PurgeRequest, service: Service) -> Selection:
    tenant = service.tenants.get(asked.tenant)
    layout = None if asked.layout is None else service.layouts.named(tenant.id, bytes.fromhex(asked.layout))
    return Selection(
        tenant=tenant.id,
        layout=layout.fingerprint if layout else None,
        writer=asked.writer,
        since=-math.inf if asked.since is None else asked.since,
        until=math.inf if asked.until is None else asked.until,
        descendants=asked.descendants,
    )


@router.get("/tenants/{name}/writers", responses=problems(404, 422))
async def list_writers(name: Name, service: Running) -> Writers:
    """Who stored the records that a tenant has, also by tokens that were revoked; the last to store first."""
    tenant = service.tenants.get(name)
    totals = await asyncio.to_thread(service.store.purging.writers, tenant.id)
    return Writers(
        writers=[
            Writer(
                writer=each.writer,
                records=each.records,
                stored_bytes=each.stored_bytes,
                first_stored=each.first_created,
                last_stored=each.last_created,
            )
            for each in totals
        ]
    )


@router.get("/tenants/{name}/records/{layout}/{kind}/{key}", responses=problems(404, 422))
async def show_record_info(name: Name, layout: Hex32, kind: KindLabel, key: Hex32, service: Running) -> RecordInfo:
    """Who stored a record, and when; not its bytes, and not a use."""
    named = record_key(service.tenants.get(name), bytes.fromhex(layout), kind, key)
    entry = service.store.entry(named)
    if entry is None:
        raise NotFound(f"tenant {name!r} has no {kind} record {key} of this layout")
    return RecordInfo(
        writer=entry.writer,
        stored=entry.created,
        last_used=entry.last_used,
        uses=entry.uses,
        position=entry.position,
        parent=entry.parent.hex(),
        stored_bytes=HEADER_BYTES + entry.stored_bytes,
    )
