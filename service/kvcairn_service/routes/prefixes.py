"""Prefixes: what of a prompt is stored, and what of it was used elsewhere."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Discriminator, Tag, TypeAdapter

from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.messages import LookupAnswer, PrefixRequest, RecordsRequest, TouchAnswer
from kvcairn_service.auth import CallingTenant
from kvcairn_service.bodies import read_json
from kvcairn_service.errors import RuleBroken, TooLarge
from kvcairn_service.openapi import problems, reads
from kvcairn_service.routes.service import Running
from kvcairn_service.state import Service, record_key
from kvcairn_service.tenants import KeptTenant
from kvcairn_storage.store import RecordKey

router = APIRouter(tags=["prefixes"], prefix="/v1")


def _shape(body: Any) -> str:
    return "records" if isinstance(body, dict) and "records" in body else "prefix"


TouchRequest: TypeAdapter[PrefixRequest | RecordsRequest] = TypeAdapter(
    Annotated[
        Annotated[PrefixRequest, Tag("prefix")] | Annotated[RecordsRequest, Tag("records")], Discriminator(_shape)
    ]
)


@router.post("/prefixes:lookup", openapi_extra=reads(PrefixRequest), responses=problems(400, 408, 409, 413, 415, 422))
async def look_up(request: Request, service: Running, tenant: CallingTenant) -> LookupAnswer:
    """The longest stored run of history blocks from the first key, and every state inside it, deepest first."""
    asked = await read_json(request, PrefixRequest, service.settings)
    check_count(len(asked.block_keys), service)
    layout = service.layouts.get(tenant.id, bytes.fromhex(asked.layout))
    if not layout.chained:
        raise RuleBroken("layout: a lookup needs a chained layout; ask records:exists for keys of this one")
    await service.expire_idle(tenant)
    run = service.store.longest_run(
        tenant=tenant.id,
        layout=layout.fingerprint,
        keys=split_keys(asked.block_keys),
        block_tokens=layout.block_tokens,
    )
    answer = LookupAnswer(
        history_blocks=run.history_blocks,
        hit_tokens=run.history_blocks * layout.block_tokens,
        state_tokens=run.state_tokens,
        strategy=tenant.document.strategy,
        codec=tenant.document.codec,
    )
    _count(service, tenant, layout, asked_blocks=len(asked.block_keys), hit_tokens=answer.hit_tokens)
    return answer


def _count(service: Service, tenant: KeptTenant, layout: Layout, *, asked_blocks: int, hit_tokens: int) -> None:
    if not service.is_wanted(tenant.id, layout.fingerprint):
        return  # Deleted during the lookup: nobody would ever forget this count.
    asked_tokens = asked_blocks * layout.block_tokens
    service.counters.note_lookup(tenant.id, layout.fingerprint, asked_tokens=asked_tokens, hit_tokens=hit_tokens)


@router.post(
    "/prefixes:touch",
    openapi_extra=reads(PrefixRequest, RecordsRequest),
    responses=problems(400, 408, 409, 413, 415, 422),
)
async def touch(request: Request, service: Running, tenant: CallingTenant) -> TouchAnswer:
    """Count as use what a client was served from its own pools."""
    asked = await read_json(request, TouchRequest, service.settings)
    names = asked.records if isinstance(asked, RecordsRequest) else asked.block_keys
    check_count(len(names), service)
    layout = service.layouts.get(tenant.id, bytes.fromhex(asked.layout)).fingerprint
    if isinstance(asked, RecordsRequest):
        keys = [record_key(tenant, layout, each.kind, each.key) for each in asked.records]
    else:
        keys = [RecordKey(tenant.id, layout, Kind.HISTORY, key) for key in split_keys(asked.block_keys)]
    await service.expire_idle(tenant)
    return TouchAnswer(touched=service.store.touch(keys))


def check_count(count: int, service: Service) -> None:
    """Refuse a request that names too many records."""
    limit = service.settings.max_keys
    if count > limit:
        raise TooLarge(f"a request names at most {limit} keys; this one names {count}")


def split_keys(hex_keys: list[str]) -> list[bytes]:
    """32 bytes each from hex digits that the model has checked; one conversion for all is several times faster."""
    joined = bytes.fromhex("".join(hex_keys))
    return [joined[at : at + 32] for at in range(0, len(joined), 32)]
