"""A transport whose `write` keeps nothing of what it is given: it is sent or copied when `write` returns.

Transports may keep the caller's buffer until the peer has taken it, long after `write` and uvicorn's `send` have
returned. A view into the LMDB map must not be kept so: once its read transaction ends, its pages may become another
record's. Holding the transaction open for the transport's sake would let a reader that stalls pin every page that is
freed meanwhile. So the kernel gets what it takes at once, straight from the map, and only the rest is copied. Why so,
and the figures: docs/decisions/data-plane.md.
"""

import asyncio
import os
from typing import Any

from kvcairn_protocol.codec import Bytes

AT_ONCE_BYTES = 64 << 10
"""Less is copied as a whole: a system call of its own would cost more."""


class HandOver:
    """An asyncio transport, with a `write` that is done with its argument. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        is_plain = transport.get_extra_info("sslcontext") is None
        # What goes out under TLS is not what was written: that is the transport's business alone.
        self._descriptor: int | None = transport.get_extra_info("socket").fileno() if is_plain else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Bytes) -> None:
        """Send what the kernel takes now, and leave a copy of the rest to the transport."""
        if not isinstance(data, memoryview):
            self._transport.write(data)  # nobody changes it: bytes are what they are
            return
        sent = self._send_now(data)
        if sent < len(data):
            self._transport.write(bytes(data[sent:]))

    def _send_now(self, data: memoryview) -> int:
        """The bytes that the kernel took; none where earlier ones still wait, since order is to be kept."""
        is_behind = self._transport.is_closing() or self._transport.get_write_buffer_size()
        if self._descriptor is None or is_behind or len(data) < AT_ONCE_BYTES:
            return 0
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return 0  # full, or broken: the transport finds out which, and does what is to be done
