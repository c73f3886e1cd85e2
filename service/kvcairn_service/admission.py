"""How much at once: an ASGI wrapper that refuses requests while draining, and those over the bound.

The probes always pass: a service that is full is alive, and one that drains must be able to say so.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from kvcairn_service.auth import PROBES
from kvcairn_service.errors import ServiceError, TooMany, Unavailable
from kvcairn_service.problems import problem_of
from kvcairn_service.state import Phase, Service


class Admission:
    """Counts the requests that are being answered, and keeps them below the limit."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal()
        if refusal is not None:
            answer = problem_of(refusal, request_id=scope.get("state", {}).get("request_id"))
            await answer(scope, receive, send)
            return
        self._service.counters.requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.counters.requests -= 1

    def _refusal(self) -> ServiceError | None:
        phase, limit = self._service.phase, self._service.settings.max_requests
        if phase is not Phase.SERVING:
            return Unavailable(f"the service is {phase.value}")
        if self._service.counters.requests >= limit:
            return TooMany(f"{limit} requests are being answered already")
        return None
