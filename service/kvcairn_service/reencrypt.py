"""Rewriting values with the key that writes now: after a rotation, and for a tenant that encrypt was turned on for."""

import asyncio
import logging
from typing import NamedTuple

from kvcairn_service.state import Service
from kvcairn_storage.errors import StorageError
from kvcairn_storage.rewriting import Rewritten
from kvcairn_storage.store import RecordKey

WAIT_SECONDS = 1.0
LOGGED_RECORDS = 10_000

log = logging.getLogger("kvcairn.encryption")


class Left(NamedTuple):
    """One value that is not encrypted as it should be: with which key it should, and how long it is."""

    key: RecordKey
    key_id: bytes
    value_bytes: int


async def reencrypt_for_ever(service: Service) -> None:
    """One pass at the start, and one after each change of the keys or of a tenant; none where nothing is encrypted."""
    done = -1
    while True:
        changes = service.encryption.changes
        if changes != done and service.encryption.is_used:
            try:
                await reencrypt_once(service)
                done = changes
            except StorageError as error:
                log.warning("values could not be encrypted anew, and will be tried again: %s", error)
                await asyncio.sleep(service.settings.sweep_seconds)
            except Exception:
                log.exception("encrypting values anew stopped, and will be tried again")
                await asyncio.sleep(service.settings.sweep_seconds)
        await asyncio.sleep(WAIT_SECONDS)


async def reencrypt_once(service: Service) -> int:
    """Rewrite every value whose key is not the one it should have, at a bounded rate; returns how many were."""
    encryption, rewritten = service.encryption, 0
    left = await asyncio.to_thread(_look, service)
    for done, (key, key_id, value_bytes) in enumerate(left):
        encryption.left_records = len(left) - done
        if done % LOGGED_RECORDS == 0:
            log.info("encrypting values with key %s: %d of %d are left", key_id.hex(), len(left) - done, len(left))
        outcome = await asyncio.to_thread(service.store.rewriting.rewrite, key, key_id=key_id)
        rewritten += outcome is Rewritten.DONE
        await asyncio.sleep(value_bytes / service.settings.reencrypt_bytes_per_second)
    encryption.left_records = 0
    if left:
        log.info("encrypted %d values with the key that writes now", rewritten)
    return rewritten


def _look(service: Service) -> list[Left]:
    """Which values to rewrite, and how many cannot be read. Reads every entry: for a worker thread."""
    encryption, left, lost_records = service.encryption, [], 0
    for key, entry in service.records.scan():
        if not encryption.reads(entry.key_id):
            lost_records += 1
            continue
        wanted = encryption.target(service.tenants.by_id(key.tenant), entry.key_id)
        if wanted != entry.key_id:
            left.append(Left(key, wanted, entry.value_bytes))
    encryption.lost_records = lost_records
    if lost_records:
        log.error("%d records are encrypted with keys that are not here: they are misses", lost_records)
    return left
