"""How much at once: an ASGI wrapper that refuses requests while draining, and those over the bound.

Behind the gate, so that each tenant has its share of the bound: one tenant's flood is refused, and others' requests are
not. Refused at once instead of kept waiting: an engine's patience ends before a queue would, and what waits takes
memory. Those that are admitted are taken up in turns, one each time that the loop goes round, so that nobody waits for
all that another has asked before. The probes always pass: a service that is full is alive, and one that drains must be
able to say so.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from kvcairn_service.auth import PROBES, tenant_id_of
from kvcairn_service.errors import ServiceError, TooMany, Unavailable
from kvcairn_service.fairness import is_within_share
from kvcairn_service.problems import problem_of
from kvcairn_service.state import Phase, Service


class Admission:
    """Counts the requests that are being answered, keeps them below the limit, and each tenant's within its share."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        tenant, counters = tenant_id_of(scope), self._service.counters
        refusal = self._refusal(tenant)
        if refusal is not None:
            counters.refused_requests += 1
            answer = problem_of(refusal, request_id=scope.get("state", {}).get("request_id"))
            await answer(scope, receive, send)
            return
        counters.begin(tenant)
        try:
            await self._service.starting.moment(tenant)
            await self._app(scope, receive, send)
        finally:
            counters.end(tenant)

    def _refusal(self, tenant: str) -> ServiceError | None:
        service = self._service
        limit, held = service.settings.max_requests, service.counters.requests_by_tenant
        if service.phase is not Phase.SERVING:
            return Unavailable(f"the service is {service.phase.value}")
        if service.counters.requests >= limit:
            return TooMany(f"{limit} requests are being answered already")
        if service.tenants.are_several and not is_within_share(1, tenant=tenant, held=held, limit=limit):
            return TooMany(f"{held[tenant]} requests of this tenant are being answered, which is its share of {limit}")
        return None
