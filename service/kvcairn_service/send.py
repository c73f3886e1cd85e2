"""Records to a raw ASGI response: whole records, one after the other, at the speed of the socket.

Why so, and the figures: docs/decisions/data-plane.md. Worker threads write to the socket themselves, in short turns
(pump.py) that tenants take fairly; the loop only accounts for what they sent, waits for slow readers, and is free for
others meanwhile. Under TLS, or under a server that is not ours, records are copied in a worker, a piece at a time, and
sent as any body is. So a reader that takes nothing costs a piece of memory at most, however large its records are.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import RECORDS_TYPE
from kvcairn_protocol.record import HEADER_BYTES, missing_record
from kvcairn_service.connection import AlreadySent, Connection, connection_of
from kvcairn_service.counters import Counters
from kvcairn_service.cursor import Cursor
from kvcairn_service.errors import NotFound
from kvcairn_service.fairness import Turns
from kvcairn_service.pace import Pace
from kvcairn_service.pump import WAIT_SECONDS, Pump
from kvcairn_storage.errors import StorageError, StoreUnreadable
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.store import Entry, RecordKey

T = TypeVar("T")

COPY_BYTES = 1 << 20
"""What is copied at once for a transport that keeps it until its reader has taken it."""


class Promised(NamedTuple):
    """One record of a response. size_bytes: what Content-Length counts for it; entry None: it is missing."""

    key: RecordKey
    entry: Entry | None

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + (self.entry.stored_bytes if self.entry else 0)


class Broken(ConnectionError):
    """A promised record is gone or has another length; the response was cut, since no framing could be true."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Threads that send, how one tenant gets its turns of them, and how many wait for theirs."""

    threads: Executor
    turns: Turns
    tenant: str


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
        workers: Workers,
        must_exist: bool = False,
    ) -> None:
        """must_exist: NotFound, instead of a header flagged missing, where a record is not there."""
        super().__init__()
        self._store = store
        self._layout = layout
        self._keys = keys
        self._counters = counters
        self._pace = pace
        self._workers = workers
        self._must_exist = must_exist

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        connection = connection_of(scope)
        with self._store.hold(self._keys) as hold:
            if self._must_exist and None in hold.entries:
                raise NotFound("the record went away before it was sent")
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
        sizes = [each.size_bytes for each in promised]
        self.headers["content-length"] = str(sum(sizes))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        at = Cursor(sizes)
        try:
            if connection is not None and connection.descriptor is not None:
                await self._pump_all(promised, at, send, connection, connection.descriptor)
            else:
                await self._copy_all(promised, at, send, connection)
        finally:
            self._touch(promised[: at.records])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump_all(
        self, promised: list[Promised], at: Cursor, send: Send, connection: Connection, descriptor: int
    ) -> None:
        waited_seconds = 0.0
        with closing(Pump(descriptor, at, lambda start, stop: self._pieces(promised[start:stop]))) as pump:
            await connection.flushed(self._pace)
            while not at.is_at_end:
                is_quick = waited_seconds < WAIT_SECONDS
                # What a slow reader takes in a moment is little; many of them would keep all workers waiting.
                may_wait = is_quick or not self._workers.turns.waiting
                turn = await self._run(partial(pump.turn, is_quick=is_quick, may_wait=may_wait))
                if turn.sent_bytes:
                    await send(_body(AlreadySent(turn.sent_bytes)))
                    self._counters.sent_bytes += turn.sent_bytes
                connection.check()
                if turn.is_waiting:
                    waited_seconds = await connection.room(pump.descriptor, self._pace)

    async def _copy_all(self, promised: list[Promised], at: Cursor, send: Send, connection: Connection | None) -> None:
        while not at.is_at_end:
            body = await self._run(partial(self._copy, promised, at))
            await send(_body(body))
            if connection is not None:
                await connection.flushed(self._pace)
            self._counters.sent_bytes += len(body)

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._workers.turns.of(self._workers.tenant):
            return await asyncio.get_running_loop().run_in_executor(self._workers.threads, work)

    def _touch(self, promised: Sequence[Promised]) -> None:
        self._store.touch([each.key for each in promised if each.entry])

    def _copy(self, promised: list[Promised], at: Cursor) -> bytes:
        """The next piece; the cursor then stands behind it."""
        with self._pieces(promised[at.records : at.stop(read_bytes=COPY_BYTES)]) as pieces:
            first, *others = at.unsent(pieces)
            piece = bytes(first[:COPY_BYTES]) if len(first) > COPY_BYTES else b"".join([first, *others])
            at.advance(pieces, sent_bytes=len(piece))
            return piece

    @contextmanager
    def _pieces(self, run: Sequence[Promised]) -> Iterator[list[Bytes]]:
        """These records, those that are there as views: good inside the with block.

        Where one is not as it was promised, or cannot be read, each is verified, and no bad one is promised again.
        """
        try:
            with self._store.views([each.key for each in run]) as views, _past_the_store() as kept:
                yield [self._piece(each, view) for each, view in zip(run, views, strict=True)]
            _raise_again(kept)
        except (Broken, StoreUnreadable):
            for each in run:
                with suppress(StorageError):  # it is served no more, even if the disk cannot delete it
                    self._store.quarantine(each.key)
            raise

    def _piece(self, promised: Promised, view: memoryview | None) -> Bytes:
        if promised.entry is None:
            return missing_record(self._layout, promised.key.kind, key=promised.key.key)
        if view is None or len(view) != promised.size_bytes:
            raise Broken(f"{promised.key.kind.label} {promised.key.key.hex()} was promised and is gone")
        return view


@contextmanager
def _past_the_store() -> Iterator[list[ConnectionError]]:
    """Keep what is wrong with a connection until the store's own block has ended: it takes any OSError for its own."""
    kept: list[ConnectionError] = []
    try:
        yield kept
    except ConnectionError as error:
        kept.append(error)


def _raise_again(kept: list[ConnectionError]) -> None:
    if kept:
        raise kept[0]


def _body(piece: Bytes | AlreadySent) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": True}
