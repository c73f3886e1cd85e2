"""Tenants and their tokens: the admin's."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from kvcairn_protocol.messages import Tenant, TenantChange, TenantName, Tenants, TenantSettings, TokenCreated, Tokens
from kvcairn_service.audited import describe
from kvcairn_service.auth import admin_of
from kvcairn_service.bodies import read_json
from kvcairn_service.errors import RuleBroken
from kvcairn_service.layouts import check_strategies
from kvcairn_service.openapi import problems, reads
from kvcairn_service.routes.service import Running
from kvcairn_service.state import Service
from kvcairn_service.tenants import Decide, KeptTenant, merge

router = APIRouter(tags=["tenants"], prefix="/v1/tenants", dependencies=[Depends(admin_of)])

Name = Annotated[TenantName, Path(description="lower-case letters, digits, dots, dashes and underscores")]


@router.get("", responses=problems())
async def list_tenants(service: Running) -> Tenants:
    """Every tenant's settings."""
    return Tenants(tenants=[kept.document for kept in service.tenants.all()])


@router.get("/{name}", responses=problems(404, 422))
async def show_tenant(name: Name, service: Running) -> Tenant:
    """One tenant's settings."""
    return service.tenants.get(name).document


@router.put("/{name}", openapi_extra=reads(TenantChange), responses=problems(400, 408, 413, 415, 422))
async def put_tenant(name: Name, request: Request, service: Running) -> Tenant:
    """Make a tenant, or set all of its settings; what is left out takes its default."""
    change = await read_json(request, TenantChange, service.settings)
    settings = _settings(name, change)
    describe(request, settings=settings.model_dump(mode="json"))
    return await _changed(service, name, lambda known: _checked(service, known, settings))


@router.patch("/{name}", openapi_extra=reads(TenantChange), responses=problems(400, 404, 408, 413, 415, 422))
async def patch_tenant(name: Name, request: Request, service: Running) -> Tenant:
    """Change what the body names, keep the rest; a strategy is replaced whole, null means unlimited."""
    changes = _settings(name, await read_json(request, TenantChange, service.settings))
    describe(request, settings=changes.model_dump(mode="json", exclude_unset=True))

    def merged(known: KeptTenant | None) -> TenantSettings:
        return _checked(service, known, merge(service.tenants.get(name).document, changes))

    return await _changed(service, name, merged)


async def _changed(service: Service, name: str, decide: Decide) -> Tenant:
    kept = await service.tenants.change(name, decide)
    service.encryption.note_tenant(kept)
    return kept.document


def _settings(name: str, change: TenantChange) -> TenantSettings:
    if change.name not in (None, name):
        raise RuleBroken(f"name: the path names tenant {name!r}, the body {change.name!r}; a tenant is not renamed")
    return change.settings


def _checked(service: Service, known: KeptTenant | None, settings: TenantSettings) -> TenantSettings:
    check_strategies(settings.strategy, service.layouts.of(known.id) if known else ())
    if settings.encrypt and not service.encryption.has_keys:
        raise RuleBroken("encrypt: this service has no key for it; set KVCAIRN_ENCRYPTION_KEY_FILE, and restart it")
    return settings


@router.delete("/{name}", status_code=204, responses=problems(404, 409, 422))
async def delete_tenant(name: Name, service: Running) -> None:
    """Delete a tenant with its tokens, layouts and records; `default` stays."""
    gone = await service.tenants.remove(name)
    await service.drop_tenant(gone.id)


@router.post("/{name}/tokens", responses=problems(404, 422))
async def make_token(name: Name, request: Request, service: Running) -> TokenCreated:
    """A new token beside those there are; the only time that its text is shown."""
    async with service.tenants.unchanged(service.tenants.get(name).id) as tenant:
        made = await service.tokens.make(tenant.id)
    describe(request, token_id=made.id)
    return made


@router.get("/{name}/tokens", responses=problems(404, 422))
async def list_tokens(name: Name, service: Running) -> Tokens:
    """The ids of a tenant's tokens, never their text."""
    return Tokens(tokens=service.tokens.of(service.tenants.get(name).id))


@router.delete("/{name}/tokens/{token_id}", status_code=204, responses=problems(404, 422))
async def revoke_token(name: Name, token_id: str, service: Running) -> None:
    """Refuse this token from now on."""
    await service.tokens.revoke(service.tenants.get(name).id, token_id)
