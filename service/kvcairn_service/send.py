"""Records to a raw ASGI response: whole records, one after the other, at the speed of the socket.

Why so, and the figures: docs/decisions/data-plane.md. A worker touches the pages of the records ahead, so that no
disk read happens on the loop; the loop copies one record, sends it, drops it and yields. `send` does not yield by
itself where the kernel takes everything: without the yield one long response starves every other request. Copies
have no lifetime hazard: a transport may keep what it was given long after `send` has returned.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import RECORDS_TYPE
from kvcairn_protocol.record import HEADER_BYTES, missing_record
from kvcairn_service.connection import Connection, connection_of
from kvcairn_service.counters import Counters
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import Entry, RecordKey

AHEAD_RECORDS = 8
AHEAD_BYTES = 32 << 20
PIECE_BYTES = 256 << 10
"""Small records leave together: a message costs about as much as copying this much."""


class Promised(NamedTuple):
    """One record of a response. size_bytes: what Content-Length counts for it; entry None: it is missing."""

    key: RecordKey
    entry: Entry | None

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + (self.entry.stored_bytes if self.entry else 0)


class Broken(ConnectionError):
    """A promised record is gone or has another length; the response was cut, since no framing could be true."""


class RecordStream(Response):
    """The answer to a fetch. The records are held from eviction from its start until the last one is sent.

    Uses are counted for what was sent. A reader that stalls, a client that goes away and a cancelled task all end in
    the same place, which releases the hold.
    """

    media_type = RECORDS_TYPE

    def __init__(
        self,
        *,
        store: PrefixStore,
        layout: Layout,
        keys: Sequence[RecordKey],
        counters: Counters,
        stall_seconds: float,
    ) -> None:
        super().__init__()
        self._store = store
        self._layout = layout
        self._keys = keys
        self._counters = counters
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        connection = connection_of(scope)
        with self._store.hold(self._keys) as hold:
            self._counters.holds += 1
            try:
                promised = [Promised(key, entry) for key, entry in zip(self._keys, hold.entries, strict=True)]
                await self._send_all(promised, send, connection)
            except BaseException:
                if connection is not None:
                    connection.abort()
                raise
            finally:
                self._counters.holds -= 1

    async def _send_all(self, promised: list[Promised], send: Send, connection: Connection | None) -> None:
        self.headers["content-length"] = str(sum(each.size_bytes for each in promised))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sent: list[RecordKey] = []
        try:
            async for keys, piece in self._pieces(promised):
                if connection is not None:
                    if connection.lost:
                        return
                    await connection.flushed(stall_seconds=self._stall_seconds)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                sent += keys
                del piece
                await asyncio.sleep(0)
        finally:
            self._store.touch(sent)
        if connection is not None:
            await connection.flushed(stall_seconds=self._stall_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self, promised: list[Promised]) -> AsyncIterator[tuple[list[RecordKey], bytes]]:
        batches = _batches(promised)
        ahead = self._warm(next(batches, []))
        while True:
            batch = await ahead
            if not batch:
                return
            ahead = self._warm(next(batches, []))
            for piece in _joined(batch, self._copy):
                yield piece

    def _warm(self, batch: list[Promised]) -> "asyncio.Future[list[Promised]]":
        """Touch the pages of a batch in a worker; resolves to the batch."""
        loop = asyncio.get_running_loop()

        def work() -> list[Promised]:
            self._store.warm([each.key for each in batch if each.entry])
            return batch

        return loop.run_in_executor(None, work) if batch else _done(loop, batch)

    def _copy(self, promised: Promised) -> bytes:
        if promised.entry is None:
            return missing_record(self._layout, promised.key.kind, key=promised.key.key)
        record = self._store.get(promised.key)
        if record is None or len(record) != promised.size_bytes:
            raise Broken(f"{promised.key.kind.label} {promised.key.key.hex()} was promised and is gone")
        return record


def _done(loop: asyncio.AbstractEventLoop, batch: list[Promised]) -> "asyncio.Future[list[Promised]]":
    future: asyncio.Future[list[Promised]] = loop.create_future()
    future.set_result(batch)
    return future


def _batches(promised: Sequence[Promised]) -> Iterator[list[Promised]]:
    """Runs of records to touch at once: a few large ones, or many small ones."""
    batch: list[Promised] = []
    batch_bytes = 0
    for each in promised:
        batch.append(each)
        batch_bytes += each.size_bytes
        if batch_bytes >= AHEAD_BYTES or (len(batch) >= AHEAD_RECORDS and batch_bytes >= PIECE_BYTES):
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _joined(batch: Sequence[Promised], copy: Callable[[Promised], bytes]) -> Iterator[tuple[list[RecordKey], bytes]]:
    """One message for a large record, one for many small ones; with the keys of those that are there."""
    waiting = iter(batch)
    while True:
        first = next(waiting, None)
        if first is None:
            return
        taken, parts, size_bytes = [first], [copy(first)], first.size_bytes
        while size_bytes < PIECE_BYTES:
            following = next(waiting, None)
            if following is None:
                break
            taken.append(following)
            parts.append(copy(following))
            size_bytes += following.size_bytes
        keys = [each.key for each in taken if each.entry]
        yield keys, parts[0] if len(parts) == 1 else b"".join(parts)
