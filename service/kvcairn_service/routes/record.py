"""One record by its address, header and all: for curl and for other languages."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from kvcairn_protocol.errors import Reason, TrailingBytes
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import RECORDS_TYPE, Hex32, KindLabel, StoreAnswer
from kvcairn_protocol.record import HEADER_BYTES, check_asked, check_header, parse_header
from kvcairn_service.auth import CallingTenant, caller_of
from kvcairn_service.bodies import check_type, open_body
from kvcairn_service.errors import NotFound, RuleBroken
from kvcairn_service.ingest import RECORD_TYPES, Upload
from kvcairn_service.openapi import problems, reads_records, sends_records
from kvcairn_service.pace import pace_of
from kvcairn_service.receive import Body
from kvcairn_service.routes.service import Running
from kvcairn_service.send import RecordStream, Workers
from kvcairn_service.state import Service, record_key
from kvcairn_service.tenants import KeptTenant
from kvcairn_service.verify import is_verified
from kvcairn_storage.store import RecordKey

router = APIRouter(tags=["record"], prefix="/v1/records")

PATH = "/{layout}/{kind}/{key}"

_SAID: dict[Reason, str] = {
    "checksum": "its bytes are not those that its checksum was made of",
    "codec": "its payload does not decode to what its header says",
    "conflict": "this kind and key is stored with another position or parent; delete that one first",
    "framing": "its bytes end before the length that its header claims",
    "parent": "its parent is stored, and does not stand one block before it",
}
"""What a whole record that is the one named can still be refused for; quota and full have statuses of their own."""


async def named_record(layout: Hex32, kind: KindLabel, key: Hex32, tenant: CallingTenant) -> RecordKey:
    """Dependency: the record that the path names."""
    return record_key(tenant, bytes.fromhex(layout), kind, key)


Named = Annotated[RecordKey, Depends(named_record)]


@router.get(
    PATH,
    responses={**sends_records("The record"), **problems(404, 422)},
    response_class=Response,
)
async def get_record(named: Named, service: Running, tenant: CallingTenant) -> Response:
    """The record, verified down to its decoded bytes; counts as a use. A bad one is quarantined, and is not there."""
    layout = service.layouts.find(tenant.id, named.layout)
    await service.expire_idle(tenant)
    if layout is None or not await _is_served(named, layout, service, tenant):
        raise _absent(named)
    return RecordStream(
        store=service.store,
        layout=layout,
        keys=[named],
        counters=service.counters,
        pace=pace_of(service.settings),
        workers=Workers(service.senders, service.sending, tenant.id),
        must_exist=True,
    )


async def _is_served(named: RecordKey, layout: Layout, service: Service, tenant: KeptTenant) -> bool:
    """Whether the record is there, and good; nothing is kept of it: it leaves as any record of a fetch does."""
    return await service.decode(tenant.id, partial(is_verified, service.store, named, layout))


@router.head(PATH, responses=problems(404, 422), response_class=Response)
async def head_record(named: Named, service: Running, tenant: CallingTenant) -> Response:
    """Whether the record is there, and how long it is; not a use."""
    await service.expire_idle(tenant)
    entry = service.store.entry(named)
    if entry is None:
        raise _absent(named)
    length = str(HEADER_BYTES + entry.stored_bytes)
    return Response(media_type=RECORDS_TYPE, headers={"content-length": length})


@router.delete(PATH, status_code=204, responses=problems(404, 422))
async def delete_record(named: Named, service: Running) -> None:
    """Delete that record alone."""
    if not await asyncio.to_thread(service.store.delete, named):
        raise _absent(named)


@router.put(
    PATH,
    openapi_extra=reads_records("One whole record"),
    response_model=StoreAnswer,
    responses={
        201: {"model": StoreAnswer, "description": "Stored"},
        **problems(400, 408, 409, 413, 415, 422, 507),
    },
)
async def put_record(named: Named, request: Request, service: Running, tenant: CallingTenant) -> Response:
    """Store one record: 201, or 200 where it is present already; 422 where it is not what the path names."""
    check_type(request, RECORD_TYPES)
    layout = service.layouts.get(tenant.id, named.layout)
    limit_bytes = HEADER_BYTES + service.settings.max_record_bytes
    async with open_body(request, max_bytes=limit_bytes, pace=pace_of(service.settings)) as body:
        upload = Upload(service=service, tenant=tenant, writer=caller_of(request).writer)
        answer = await upload.run(NamedBody(body, named, layout, limit_bytes))
    if answer.rejected:
        reason = answer.rejected[0].reason
        raise RuleBroken(f"the record was not stored: {_SAID.get(reason, reason)}", members={"reason": reason})
    return Response(answer.model_dump_json(), status_code=201 if answer.stored else 200, media_type="application/json")


@dataclass(slots=True)
class NamedBody:
    """The same body, if it is one whole record with the kind, key and layout that the path names; else a RecordError.

    The record counts as filled only once its body has ended behind it, so that nothing is stored of one that goes on.
    """

    body: Body
    named: RecordKey
    layout: Layout
    limit_bytes: int
    _seen_bytes: int = 0
    _record_bytes: int = HEADER_BYTES

    async def fill(self, target: memoryview) -> int:
        """See Body."""
        got_bytes = await self.body.fill(target)
        if not self._seen_bytes and got_bytes:
            self._record_bytes = self._check_head(target[:got_bytes])
        self._seen_bytes += got_bytes
        if self._seen_bytes == self._record_bytes and got_bytes and await self.body.fill(memoryview(bytearray(1))):
            raise TrailingBytes(f"bytes follow the record's end at {self._record_bytes}")
        return got_bytes

    def _check_head(self, head: memoryview) -> int:
        header = parse_header(head, max_raw_bytes=self.limit_bytes)
        check_asked(header, kind=self.named.kind, key=self.named.key, fingerprint=self.named.layout)
        check_header(header, self.layout)
        return header.record_bytes


def _absent(named: RecordKey) -> NotFound:
    return NotFound(f"there is no {named.kind.label} record {named.key.hex()} of this layout")
