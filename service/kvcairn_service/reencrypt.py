"""Rewriting values with the key that writes now: after a rotation, and for a tenant that encrypt was turned on for."""

import asyncio
import logging

from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_service.state import Service
from kvcairn_storage.errors import StorageError
from kvcairn_storage.rewriting import Rewritten
from kvcairn_storage.store import RecordKey

WAIT_SECONDS = 1.0
LOGGED_RECORDS = 10_000

log = logging.getLogger("kvcairn.encryption")


async def reencrypt_for_ever(service: Service) -> None:
    """One pass at the start, and one after each change of the keys or of a tenant."""
    done = -1
    while True:
        changes = service.encryption.changes
        if changes != done:
            try:
                await reencrypt_once(service)
                done = changes
            except StorageError as error:
                log.warning("values could not be encrypted anew, and will be tried again: %s", error)
                await asyncio.sleep(service.settings.sweep_seconds)
        await asyncio.sleep(WAIT_SECONDS)


async def reencrypt_once(service: Service) -> int:
    """Rewrite every value whose key is not the one it should have, at a bounded rate; returns how many were."""
    encryption, rewritten = service.encryption, 0
    found = await asyncio.to_thread(service.store.rewriting.entries)
    left = [(key, target) for key, key_id in found if (target := _target(service, key, key_id)) != key_id]
    encryption.lost_records = sum(not encryption.reads(key_id) for _, key_id in found)
    if encryption.lost_records:
        log.error("%d records are encrypted with keys that are not here: they are misses", encryption.lost_records)
    for done, (key, target) in enumerate(left):
        encryption.left_records = len(left) - done
        if done % LOGGED_RECORDS == 0:
            log.info("encrypting values with key %s: %d of %d are left", target.hex(), len(left) - done, len(left))
        entry = service.store.entry(key)
        outcome = await asyncio.to_thread(service.store.rewriting.rewrite, key, key_id=target)
        rewritten += outcome is Rewritten.DONE
        if entry is not None:
            await asyncio.sleep((HEADER_BYTES + entry.stored_bytes) / service.settings.reencrypt_bytes_per_second)
    encryption.left_records = 0
    if left:
        log.info("encrypted %d values with the key that writes now", rewritten)
    return rewritten


def _target(service: Service, key: RecordKey, key_id: bytes) -> bytes:
    """What its value's key should be; as it is where it cannot be read."""
    if not service.encryption.reads(key_id):
        return key_id
    return service.encryption.target(service.tenants.by_id(key.tenant), key_id)
