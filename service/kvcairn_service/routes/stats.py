"""Statistics, as JSON and in Prometheus' format."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from kvcairn_protocol.messages import ServiceStats, TenantStats
from kvcairn_service.auth import CallingTenant, admin_of, metrics_reader_of
from kvcairn_service.metrics import CONTENT_TYPE, Metrics
from kvcairn_service.openapi import problems
from kvcairn_service.routes.service import Running
from kvcairn_service.stats import service_stats, tenant_stats

router = APIRouter(tags=["stats"])


async def metrics_of(request: Request) -> Metrics:
    """Dependency: the application's metrics."""
    found: Metrics = request.app.state.metrics
    return found


@router.get("/v1/stats", responses=problems())
async def show_stats(service: Running, tenant: CallingTenant) -> TenantStats:
    """The caller's own tenant: records, bytes, lookups, hits, evictions, ages and reuse by kind and layout."""
    return tenant_stats(service, tenant)


@router.get("/v1/stats/all", responses=problems(), dependencies=[Depends(admin_of)])
async def show_all_stats(service: Running) -> ServiceStats:
    """Every tenant, and the store itself."""
    return service_stats(service)


@router.get(
    "/metrics",
    dependencies=[Depends(metrics_reader_of)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
)
async def show_metrics(metrics: Annotated[Metrics, Depends(metrics_of)]) -> Response:
    """Prometheus' text format."""
    return Response(metrics.render(), media_type=CONTENT_TYPE)
