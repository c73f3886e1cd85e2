"""What the service is, whether it lives, and whether it takes requests."""

import importlib.metadata
from functools import cache
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.responses import Response

from kvcairn_protocol.messages import ServiceInfo, ServiceLimits
from kvcairn_service.auth import CallingTenant
from kvcairn_service.openapi import problems
from kvcairn_service.problems import problem
from kvcairn_service.settings import Settings
from kvcairn_service.state import Phase, Service, service_of

router = APIRouter(tags=["service"])

NAME = "kvcairn"
API = 1
FEATURES = ("touch", "report", "single-records", "unchained-layouts", "pins", "purge")

Running = Annotated[Service, Depends(service_of)]


class Health(BaseModel):
    """A probe's answer."""

    status: Literal["ok", "ready"]


@cache  # read from the disk, which takes longer than all else of an answer
def version() -> str:
    """The version of the installed distribution; 0 for a source tree that is not installed."""
    try:
        return importlib.metadata.version("kvcairn")
    except importlib.metadata.PackageNotFoundError:
        return "0"


@router.get("/v1/service", responses=problems())
async def describe_service(service: Running, tenant: CallingTenant) -> ServiceInfo:
    """What a client needs to know first."""
    return ServiceInfo(
        name=NAME,
        version=version(),
        api=API,
        generation=service.generation,
        open=service.settings.is_open,
        limits=limits_of(service.settings),
        features=list(FEATURES),
        tenant_id=tenant.id,
    )


def limits_of(settings: Settings) -> ServiceLimits:
    """The limits in the words of the wire page."""
    return ServiceLimits(
        layouts_per_tenant=settings.max_layouts,
        layout_bytes=settings.max_layout_bytes,
        keys_per_request=settings.max_keys,
        record_bytes=settings.max_record_bytes,
        body_bytes=settings.max_body_bytes,
        pins_per_tenant=settings.max_pins,
        pin_seconds=settings.max_pin_seconds,
    )


@router.get("/healthz", response_model=Health, responses={503: problems(503)[503]})
async def is_alive(service: Running) -> Health | Response:
    """Liveness: the event loop turns, and nothing is wrong that only a restart mends."""
    fault = service.fault()
    return Health(status="ok") if fault is None else _unavailable(f"restart the service: {fault}")


@router.get("/readyz", response_model=Health, responses={503: problems(503)[503]})
async def is_ready(service: Running) -> Health | Response:
    """Readiness: the store is open and sound, and the service is not draining."""
    fault = service.fault()
    if fault is not None:
        return _unavailable(f"restart the service: {fault}")
    if service.phase is Phase.SERVING:
        return Health(status="ready")
    return _unavailable(f"the service is {service.phase.value}")


def _unavailable(detail: str) -> Response:
    return problem(503, kind="unavailable", detail=detail, headers={"Retry-After": "2"})
