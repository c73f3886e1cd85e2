"""Pins of the calling tenant: pin a prefix, list, show, let go."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from kvcairn_protocol.messages import Pin, PinId, PinRequest, Pins
from kvcairn_service.auth import CallingTenant
from kvcairn_service.bodies import read_json
from kvcairn_service.errors import RuleBroken
from kvcairn_service.openapi import problems, reads
from kvcairn_service.routes.prefixes import check_count, split_keys
from kvcairn_service.routes.service import Running

router = APIRouter(tags=["pins"], prefix="/v1")

Id = Annotated[PinId, Path(alias="id", description="as the list shows it")]


@router.post(
    "/prefixes:pin",
    openapi_extra=reads(PinRequest),
    responses={201: {"model": Pin, "description": "A new pin"}, **problems(400, 404, 408, 409, 413, 415, 422, 507)},
)
async def pin_prefix(request: Request, response: Response, service: Running, tenant: CallingTenant) -> Pin:
    """Keep what is stored of a prefix from eviction for so long; 201 for a new pin, 200 for one that is renewed."""
    asked = await read_json(request, PinRequest, service.settings)
    check_count(len(asked.block_keys), service)
    layout = service.layouts.get(tenant.id, bytes.fromhex(asked.layout))
    if not layout.chained:
        raise RuleBroken("layout: a pin needs a chained layout; keys of this one make no prefix")
    await service.expire_idle(tenant)
    async with service.tenants.unchanged(tenant.id) as current:
        kept, is_new = await service.pins.put(
            tenant.id, current.document, layout, split_keys(asked.block_keys),
            ttl_seconds=asked.ttl_seconds, name=asked.name, is_wanted=service.is_wanted,
        )  # fmt: skip
    response.status_code = 201 if is_new else 200
    return await service.pins.answer(kept)


@router.get("/pins", responses=problems())
async def list_pins(service: Running, tenant: CallingTenant) -> Pins:
    """The tenant's pins that have not expired, the oldest first."""
    return Pins(
        pins=[await service.pins.answer(kept) for kept in service.pins.of(tenant.id)],
        pinned_bytes=service.store.pins.pinned_bytes(tenant.id),
        pin_quota_bytes=service.pins.limit_bytes(tenant.document),
    )


@router.get("/pins/{id}", responses=problems(404, 422))
async def show_pin(pin_id: Id, service: Running, tenant: CallingTenant) -> Pin:
    """One pin, and how many of its records are there."""
    return await service.pins.answer(service.pins.get(tenant.id, pin_id))


@router.delete("/pins/{id}", status_code=204, responses=problems(404, 422))
async def remove_pin(pin_id: Id, service: Running, tenant: CallingTenant) -> None:
    """Let a pin go; its records stay, and may be evicted like any others from now on."""
    await service.pins.remove(tenant.id, pin_id)
