"""What goes on in the background: idle records expire, and stored records are verified again at a bounded rate."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from functools import partial

from kvcairn_protocol.errors import KvcairnError
from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_service.reencrypt import reencrypt_for_ever
from kvcairn_service.state import Service
from kvcairn_service.verify import quarantine_if_bad
from kvcairn_storage.store import RecordKey

log = logging.getLogger("kvcairn.sweep")


async def run_sweeps(service: Service) -> None:
    """Run every sweep until cancelled. Whatever goes wrong in one is logged, and it goes on."""
    async with asyncio.TaskGroup() as group:
        group.create_task(expire_for_ever(service))
        group.create_task(unpin_for_ever(service))
        group.create_task(reencrypt_for_ever(service))
        if service.settings.scrub_bytes_per_second:
            group.create_task(scrub_for_ever(service))


async def expire_for_ever(service: Service) -> None:
    """Every so often, drop what tenants with a ttl have not used for that long; requests do the same for their own."""
    while True:
        await asyncio.sleep(service.settings.sweep_seconds)
        for tenant in service.tenants.all():
            with _going_on(f"idle records of tenant {tenant.name} could not be dropped"):
                await service.expire_idle(tenant)


async def unpin_for_ever(service: Service) -> None:
    """Every so often, let go of pins that have expired; whoever pins does the same."""
    while True:
        with _going_on("pins that have expired could not be let go"):
            await service.pins.drop_expired()
        await asyncio.sleep(service.settings.sweep_seconds)


async def scrub_for_ever(service: Service) -> None:
    """Verify every stored record again, over and over, so that what the disk lost is found before a reader needs it."""
    while True:
        await asyncio.sleep(service.settings.sweep_seconds)
        with _going_on("the scrub stopped and will start anew"):
            await scrub_once(service)


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    try:
        yield
    except KvcairnError as error:
        log.warning("%s: %s", what, error)
    except Exception:
        log.exception("%s: an unexpected error", what)


SCRUB = "scrub"
"""Whose turn it is when a record is decoded for nobody; no tenant has such an id."""


async def scrub_once(service: Service) -> int:
    """One pass over what was stored when it began; returns how many records were bad, and are now quarantined."""
    bad_records = 0
    for key, size_bytes in await asyncio.to_thread(_listed, service):
        layout = service.layouts.find(key.tenant, key.layout)
        if layout is not None and await service.decode(SCRUB, partial(quarantine_if_bad, service.store, key, layout)):
            log.error("the %s record %s is damaged; it is no longer served", key.kind.label, key.key.hex())
            bad_records += 1
        await asyncio.sleep(size_bytes / service.settings.scrub_bytes_per_second)
    return bad_records


def _listed(service: Service) -> list[tuple[RecordKey, int]]:
    return list(_sizes(service))


def _sizes(service: Service) -> Iterator[tuple[RecordKey, int]]:
    for key, entry in service.records.scan():
        yield key, HEADER_BYTES + entry.stored_bytes
