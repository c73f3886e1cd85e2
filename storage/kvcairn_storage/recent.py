"""Recent: records that were decrypted a moment ago, so that one that leaves in parts is decrypted once."""

import threading
from collections import OrderedDict
from collections.abc import Callable

RECENT_BYTES = 32 << 20
"""As much as a few senders have under way; beyond it the oldest go."""


class Recent:
    """Plain records by what tells their encrypted values apart: front and tag. Thread-safe."""

    def __init__(self, total_bytes: int = RECENT_BYTES) -> None:
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._held_bytes = 0

    def get(self, name: bytes, make: Callable[[], bytes]) -> bytes:
        """The record of that name; made, and kept for a while, where it is not here. Raises what `make` does."""
        with self._lock:
            found = self._held.get(name)
        return self._kept(name, make()) if found is None else found

    def _kept(self, name: bytes, record: bytes) -> bytes:
        with self._lock:
            before = self._held.pop(name, b"")
            self._held[name] = record
            self._held_bytes += len(record) - len(before)
            while self._held_bytes > self._total_bytes:
                self._held_bytes -= len(self._held.popitem(last=False)[1])
        return record
