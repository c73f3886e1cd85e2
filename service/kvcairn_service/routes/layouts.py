"""Layouts of the calling tenant: register, list, show, delete."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import Hex32, Layouts
from kvcairn_service.auth import CallingTenant
from kvcairn_service.bodies import check_type, read_body
from kvcairn_service.layouts import check_strategies, entry, read_layout
from kvcairn_service.openapi import problems, reads
from kvcairn_service.pace import pace_of
from kvcairn_service.routes.service import Running

router = APIRouter(tags=["layouts"], prefix="/v1/layouts")

Fingerprint = Annotated[Hex32, "the SHA-256 of the canonical document"]


@router.get("", responses=problems())
async def list_layouts(service: Running, tenant: CallingTenant) -> Layouts:
    """Every registered layout, in short."""
    return Layouts(layouts=[entry(layout) for layout in service.layouts.of(tenant.id)])


@router.get("/{fingerprint}", response_model=Layout, responses=problems(404, 422))
async def show_layout(fingerprint: Fingerprint, service: Running, tenant: CallingTenant) -> Response:
    """The canonical document."""
    return _document(service.layouts.named(tenant.id, bytes.fromhex(fingerprint)), status_code=200)


@router.put(
    "/{fingerprint}",
    response_model=Layout,
    openapi_extra=reads(Layout),
    responses={201: {"model": Layout, "description": "Registered"}, **problems(400, 408, 413, 415, 422)},
)
async def register_layout(
    fingerprint: Fingerprint, request: Request, service: Running, tenant: CallingTenant
) -> Response:
    """Register a layout; 201 the first time, 200 from then on."""
    settings = service.settings
    check_type(request, ("application/json",))
    body = await read_body(request, max_bytes=settings.max_layout_bytes, pace=pace_of(settings))
    layout = read_layout(body, fingerprint=bytes.fromhex(fingerprint), max_record_bytes=settings.max_record_bytes)
    async with service.tenants.unchanged(tenant.id) as current:
        check_strategies(current.document.strategy, [layout])
        is_new = await service.layouts.put(tenant.id, layout)
    return _document(layout, status_code=201 if is_new else 200)


@router.delete("/{fingerprint}", status_code=204, responses=problems(404, 422))
async def delete_layout(fingerprint: Fingerprint, service: Running, tenant: CallingTenant) -> None:
    """Delete a layout and every record of it."""
    layout = bytes.fromhex(fingerprint)
    await service.layouts.remove(tenant.id, layout)
    await service.pins.remove_all(tenant.id, layout)
    await asyncio.to_thread(service.store.drop, tenant=tenant.id, layout=layout)
    service.counters.forget(tenant.id, layout)


def _document(layout: Layout, *, status_code: int) -> Response:
    return Response(layout.canonical, status_code=status_code, media_type="application/json")
