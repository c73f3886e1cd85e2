"""Records to a raw ASGI response: whole records, one after the other, at the speed of the socket.

Why so, and the figures: docs/decisions/data-plane.md. A worker touches the pages of the records ahead, so that no
disk read happens on the loop; the loop sends one record straight from the map, closes its read transaction, waits
until nothing is unsent, and yields. `send` does not yield by itself where the kernel takes everything: without the
yield one long response starves every other request. No view outlives its transaction: see handover.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import RECORDS_TYPE
from kvcairn_protocol.record import HEADER_BYTES, missing_record
from kvcairn_service.connection import Connection, connection_of
from kvcairn_service.counters import Counters
from kvcairn_service.pace import Pace
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import Entry, RecordKey

AHEAD_BYTES = 16 << 20
"""Touched by the worker at once: eight records of the size that a deployed model has."""

PIECE_BYTES = 256 << 10
PIECE_RECORDS = 64
"""Small records leave together, so many at most: a message costs about as much as copying PIECE_BYTES."""


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
    ) -> None:
        super().__init__()
        self._store = store
        self._layout = layout
        self._keys = keys
        self._counters = counters
        self._pace = pace

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
            async for run in self._warmed(promised):
                await self._send_run(run, send, connection)
                sent += [each.key for each in run if each.entry]
                await asyncio.sleep(0)
        finally:
            self._store.touch(sent)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_run(self, run: list[Promised], send: Send, connection: Connection | None) -> None:
        if connection is not None:
            connection.check()
        with self._pieces(run) as pieces:
            # One large record goes out as a view: our connection is done with it when `send` returns (handover.py).
            # It does not wait in between either, since nothing of what was sent before is unsent.
            is_view = len(pieces) == 1 and connection is not None
            piece = pieces[0] if is_view else b"".join(pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if connection is not None:
            await connection.flushed(self._pace)
        self._counters.sent_bytes += sum(each.size_bytes for each in run)

    async def _warmed(self, promised: list[Promised]) -> AsyncIterator[list[Promised]]:
        """Runs of records to send as one piece each, whose pages are in memory; the next ones are being touched."""
        batches = [*runs(promised, run_bytes=AHEAD_BYTES, run_records=len(promised)), []]
        ahead = self._warm(batches[0])
        for batch, following in pairwise(batches):
            await ahead
            ahead = self._warm(following)
            for run in runs(batch, run_bytes=PIECE_BYTES, run_records=PIECE_RECORDS):
                yield run

    def _warm(self, batch: list[Promised]) -> "asyncio.Future[None]":
        keys = [each.key for each in batch if each.entry]
        return asyncio.get_running_loop().run_in_executor(None, self._store.warm, keys)

    @contextmanager
    def _pieces(self, run: list[Promised]) -> Iterator[list[Bytes]]:
        """The records of a run, those that are there as views that are good inside the with block."""
        with self._store.views([each.key for each in run]) as views:
            yield [self._piece(each, view) for each, view in zip(run, views, strict=True)]

    def _piece(self, promised: Promised, view: memoryview | None) -> Bytes:
        if promised.entry is None:
            return missing_record(self._layout, promised.key.kind, key=promised.key.key)
        if view is None or len(view) != promised.size_bytes:
            raise Broken(f"{promised.key.kind.label} {promised.key.key.hex()} was promised and is gone")
        return view


def runs(promised: Sequence[Promised], *, run_bytes: int, run_records: int) -> Iterator[list[Promised]]:
    """Cut into runs, each as short as it can be with at least `run_bytes`, or `run_records` long."""
    run: list[Promised] = []
    size_bytes = 0
    for each in promised:
        run.append(each)
        size_bytes += each.size_bytes
        if size_bytes >= run_bytes or len(run) >= run_records:
            yield run
            run, size_bytes = [], 0
    if run:
        yield run
