"""Records to a raw ASGI response: whole records, one after the other, at the speed of the socket.

Why so, and the figures: docs/decisions/data-plane.md. Worker threads write to the socket themselves, in short turns
(pump.py); the loop only accounts for what they sent, sees to what a slow reader has left, and is free for others
meanwhile. Under a server or a transport that is not ours, records are copied in a worker, and sent as any body is.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import RECORDS_TYPE
from kvcairn_protocol.record import HEADER_BYTES, missing_record
from kvcairn_service.connection import AlreadySent, Connection, connection_of
from kvcairn_service.counters import Counters
from kvcairn_service.pace import Pace
from kvcairn_service.pump import Pump
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import Entry, RecordKey


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

    Bytes and uses are counted for what a connection took while it was alive. A reader that is too slow, a client that
    goes away and a cancelled task all end in the same place, which releases the hold.
    """

    media_type = RECORDS_TYPE

    def __init__(
        self,
        *,
        store: PrefixStore,
        layout: Layout,
        keys: Sequence[RecordKey],
        counters: Counters,
        pace: Pace,
        workers: Executor,
    ) -> None:
        super().__init__()
        self._store = store
        self._layout = layout
        self._keys = keys
        self._counters = counters
        self._pace = pace
        self._workers = workers

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
        if connection is not None and connection.descriptor is not None:
            await self._pump_all(promised, send, connection, connection.descriptor)
        else:
            await self._copy_all(promised, send, connection)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump_all(self, promised: list[Promised], send: Send, connection: Connection, descriptor: int) -> None:
        sizes = [each.size_bytes for each in promised]
        run = asyncio.get_running_loop().run_in_executor
        sent = 0
        with closing(Pump(descriptor, sizes, lambda start, stop: self._pieces(promised[start:stop]))) as pump:
            try:
                await connection.flushed(self._pace)
                while sent < len(promised):
                    turn = await run(self._workers, pump.turn, sent)
                    whole_bytes = sum(sizes[sent : sent + turn.records])
                    sent += turn.records
                    begun_bytes = sum(sizes[sent : sent + turn.begun])
                    await send(_body(AlreadySent(whole_bytes + begun_bytes - len(turn.rest))))
                    self._counters.sent_bytes += whole_bytes
                    if turn.rest:
                        await send(_body(turn.rest))
                        await connection.flushed(self._pace)
                        self._counters.sent_bytes += begun_bytes
                        sent += turn.begun
            finally:
                self._touch(promised[:sent])

    async def _copy_all(self, promised: list[Promised], send: Send, connection: Connection | None) -> None:
        for each in promised:
            body = await asyncio.get_running_loop().run_in_executor(self._workers, self._copy, each)
            await send(_body(body))
            if connection is not None:
                await connection.flushed(self._pace)
            self._counters.sent_bytes += len(body)
            self._touch([each])

    def _touch(self, promised: Sequence[Promised]) -> None:
        self._store.touch([each.key for each in promised if each.entry])

    def _copy(self, promised: Promised) -> bytes:
        with self._pieces([promised]) as (piece,):
            return bytes(piece)

    @contextmanager
    def _pieces(self, run: Sequence[Promised]) -> Iterator[list[Bytes]]:
        """These records, those that are there as views: good inside the with block."""
        with self._store.views([each.key for each in run]) as views:
            yield [self._piece(each, view) for each, view in zip(run, views, strict=True)]

    def _piece(self, promised: Promised, view: memoryview | None) -> Bytes:
        if promised.entry is None:
            return missing_record(self._layout, promised.key.kind, key=promised.key.key)
        if view is None or len(view) != promised.size_bytes:
            raise Broken(f"{promised.key.kind.label} {promised.key.key.hex()} was promised and is gone")
        return view


def _body(piece: Bytes | AlreadySent) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": True}
