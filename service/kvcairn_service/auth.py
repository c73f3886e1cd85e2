"""Who is calling: an ASGI wrapper in front of the routes, and the dependencies by which they ask.

Without an admin token the service is open: every caller is the tenant `default` and the admin, and Host and Origin
are checked against browsers. With one, every request but the probes needs a token.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kvcairn_protocol.errors import KvcairnError
from kvcairn_service.connection import connection_of
from kvcairn_service.errors import Forbidden, Unauthenticated
from kvcairn_service.hosts import is_own_page, may_call
from kvcairn_service.problems import problem_of
from kvcairn_service.settings import Settings
from kvcairn_service.state import Service
from kvcairn_service.tenants import KeptTenant
from kvcairn_service.tokens import digest_of

PROBES = frozenset({"/healthz", "/readyz"})
ADMIN, EVERYBODY, METRICS = "admin", "open", "metrics"
"""Who is known by no token of a tenant: whoever holds the admin's or the metrics token, or calls an open service. No
tenant's token has such an id."""


@dataclass(frozen=True, slots=True)
class Caller:
    """tenant: whose records a data endpoint means; None for one that may only read metrics.

    writer: what is remembered with the records that it stores, the id of its token as a rule.
    """

    tenant: KeptTenant | None
    is_admin: bool
    may_read_metrics: bool
    writer: str


class Gate:
    """Lets through whom the service may answer, and tells the routes who it is."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            state["caller"] = identify(scope, self._service)
            _introduce(scope)
        except KvcairnError as error:
            await problem_of(error, request_id=state.get("request_id"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _introduce(scope: Scope) -> None:
    """Let the connection know whose it is, once it has shown a token."""
    connection, caller = connection_of(scope), scope["state"]["caller"]
    if connection is not None and caller is not None:
        connection.recognise(tenant_id_of(scope))


def identify(scope: Scope, service: Service) -> Caller | None:
    """The caller of a request; None for a probe. Unauthenticated and Forbidden say what is missing."""
    headers = Headers(scope=scope)
    if service.settings.is_open:
        _check_browser(scope, headers, service.settings)
        return Caller(service.tenants.default, is_admin=True, may_read_metrics=True, writer=EVERYBODY)
    if scope["path"] in PROBES:
        return None
    return _holder(_bearer(headers), service)


def _check_browser(scope: Scope, headers: Headers, settings: Settings) -> None:
    server = scope.get("server")
    is_unix_socket = server is not None and server[1] is None
    # No browser speaks to a Unix socket, and its clients send any Host.
    if is_unix_socket:
        return
    host, origin, fetch_site = headers.get("host"), headers.get("origin"), headers.get("sec-fetch-site")
    if not is_own_page(fetch_site):
        raise Forbidden(f"an open service answers no other site's pages, not Sec-Fetch-Site {fetch_site!r}")
    if not may_call(host, origin, settings.open_to):
        raise Forbidden(
            f"an open service answers loopback names only, not Host {host!r} with Origin {origin!r}; "
            f"start it with --open-to NAME, or with an admin token"
        )


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("send the header Authorization: Bearer <token>")
    return token.strip()


def _holder(token: str, service: Service) -> Caller:
    """Whose token it is. All that could match are compared, so that a refusal takes as long as any other."""
    digest = digest_of(token)
    is_admin, is_metrics = service.standing.admin.is_held(digest), service.standing.metrics.is_held(digest)
    kept = service.tokens.find(token, digest)
    tenant = service.tenants.by_id(kept.tenant) if kept else None
    if is_admin:
        return Caller(service.tenants.default, is_admin=True, may_read_metrics=True, writer=ADMIN)
    if is_metrics:
        return Caller(None, is_admin=False, may_read_metrics=True, writer=METRICS)
    if kept is None or tenant is None:
        raise Unauthenticated("this token is not known, or it was revoked")
    return Caller(tenant, is_admin=False, may_read_metrics=False, writer=kept.id)


bearer = HTTPBearer(auto_error=False, description="A tenant's token, or the admin's; an open service asks for none.")
"""For the OpenAPI document; the check itself is the gate's."""


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def tenant_id_of(scope: Scope) -> str:
    """Whose share a request counts against, once it has passed the gate; "" for one without a tenant."""
    caller: Caller | None = scope["state"]["caller"]
    return caller.tenant.id if caller is not None and caller.tenant is not None else ""


async def tenant_of(request: Request, _: Annotated[object, Security(bearer)]) -> KeptTenant:
    """Dependency: the tenant whose records the request means."""
    tenant = caller_of(request).tenant
    if tenant is None:
        raise Forbidden("the metrics token reads /metrics and nothing else")
    return tenant


async def admin_of(request: Request, _: Annotated[object, Security(bearer)]) -> None:
    """Dependency: the caller must be the admin."""
    if not caller_of(request).is_admin:
        raise Forbidden("only the admin's token may do this")


async def metrics_reader_of(request: Request, _: Annotated[object, Security(bearer)]) -> None:
    """Dependency: the caller must be the admin, or hold the metrics token."""
    if not caller_of(request).may_read_metrics:
        raise Forbidden("only the admin's or the metrics token may do this")


CallingTenant = Annotated[KeptTenant, Depends(tenant_of)]
