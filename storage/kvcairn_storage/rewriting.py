"""Rewriting: a stored record's value written again with another key, while it is served."""

import threading
from collections.abc import Callable, Sequence
from enum import Enum

from kvcairn_storage.integrity import is_sound
from kvcairn_storage.slot import Phase, charge_bytes
from kvcairn_storage.space import Space
from kvcairn_storage.store import Entry, Put, RecordKey, RecordStore


class Rewritten(Enum):
    """What became of one record."""

    DONE = "written with the new key"
    SKIPPED = "gone, being written, bad, or encrypted so already"
    GROWN = "its value needs one more page than is charged: it was dropped, and the next store writes it anew"


class Rewriting:
    """Of one store, which owns all of these; the disk is waited for outside the lock."""

    def __init__(
        self, records: RecordStore, space: Space, lock: threading.Lock, drop: Callable[[Sequence[RecordKey]], int]
    ) -> None:
        self._records, self._space, self._lock, self._drop = records, space, lock, drop

    def rewrite(self, key: RecordKey, *, key_id: bytes) -> Rewritten:
        """Encrypt a record's value with the key of this id, committed. Counts as no use.

        Written under the lock, so that whoever deletes it afterwards also deletes it on the disk: a store's writes
        happen in the order in which they came.
        """
        with self._lock:
            slot = self._space.present(key)
        data = None if slot is None or slot.entry.key_id == key_id else self._records.get(key)
        if slot is None or data is None or not is_sound(key, slot.entry, data):
            return Rewritten.SKIPPED
        with self._lock:
            if slot.phase is not Phase.PRESENT:
                return Rewritten.SKIPPED
            entry = _with_key(slot.entry, key_id)
            fits = charge_bytes(entry) <= slot.charged_bytes
            written = self._records.write([Put(key, entry, [data])]) if fits else None
        if written is None:
            self._drop([key])
            return Rewritten.GROWN
        written.result()
        with self._lock:
            slot.entry.key_id = key_id
        return Rewritten.DONE


def _with_key(entry: Entry, key_id: bytes) -> Entry:
    changed = entry.copied()
    changed.key_id = key_id
    return changed
