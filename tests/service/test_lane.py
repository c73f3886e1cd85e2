"""A large body through a lane, and the same through the parser: what comes out is the same, and what follows it, too.

On a pair of sockets, under both event loops, with an application that says what it read.
"""

import asyncio
import contextlib
import hashlib
import json
import socket
from itertools import pairwise

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.server import ServerState

from kvcairn_protocol.layout import parse_layout
from kvcairn_service.bodies import open_body
from kvcairn_service.connection import connection_class
from kvcairn_service.errors import BodyTimeout, Disconnected
from kvcairn_service.lane import LEAST_BYTES, Lane
from kvcairn_service.lane_check import lanes_work
from kvcairn_service.pace import Pace
from kvcairn_service.receive import Announced, Received, RecordReader
from service_samples import canonical, chain, chain_records, fingerprint, layout_document, record

DOCUMENT = layout_document(model="lane", history_bytes=300_000)
LAYOUT = parse_layout(canonical(DOCUMENT))
KEYS = chain(DOCUMENT, 6)
GOOD = chain_records(DOCUMENT, KEYS)
BAD = record(DOCUMENT, 4, KEYS[5], position=8, payload=b"x" * 200_000)
BODY = b"".join([*GOOD[:3], BAD, *GOOD[3:]])
OUTCOME = [hashlib.sha256(each).hexdigest() for each in [*GOOD[:3], BAD, *GOOD[3:]]]
OUTCOME[3] = "kind"
assert len(BODY) > LEAST_BYTES + (512 << 10), "more than what comes before a lane begins"


class Reader:
    """An application that takes a body's records apart, `most` of them, and answers with their digests.

    ways: how each body was read. errors: what ended one early.
    """

    def __init__(self, stall_seconds=20.0, most=100):
        self.stall_seconds, self.most = stall_seconds, most
        self.ways, self.errors, self.seen = [], [], []
        self.ended = asyncio.Event()

    async def __call__(self, scope, receive, send):
        request = Request(scope, receive)
        outcome = []
        if request.method == "POST":
            pace = Pace(stall_seconds=self.stall_seconds, bytes_per_second=1 << 20)
            try:
                async with open_body(request, max_bytes=64 << 20, pace=pace) as body:
                    self.ways.append(type(body).__name__)
                    await self._read(body, outcome)
            except (BodyTimeout, Disconnected) as error:
                self.errors.append(type(error).__name__)
                self.seen.append(outcome)
                self.ended.set()
        await Response(json.dumps(outcome))(scope, receive, send)

    async def _read(self, body, outcome):
        reader = RecordReader(
            body, {fingerprint(DOCUMENT): LAYOUT}.get, lambda _: None, max_record_bytes=1 << 20, max_records=100
        )
        while len(outcome) < self.most and (found := await reader.next()) is not None:
            if isinstance(found, Announced):
                found = await reader.fill(found, memoryview(bytearray(found.header.record_bytes)))
            is_whole = isinstance(found, Received)
            outcome.append(hashlib.sha256(found.data).hexdigest() if is_whole else found.reason)


class Caller:
    """The other end of a connection."""

    def __init__(self, reader, writer, connection):
        self.reader, self.writer, self.connection = reader, writer, connection

    async def send(self, pieces):
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def answer(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return json.loads(await self.reader.readexactly(length))


def post(body, more=b""):
    return b"POST / HTTP/1.1\r\nhost: x\r\n" + more + f"content-length: {len(body)}\r\n\r\n".encode()


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def connected(app, *, has_lanes=True, header_seconds=20.0):
    protocol = connection_class(header_seconds=header_seconds, max_connections=4)
    protocol.has_lanes = has_lanes
    config = Config(app, log_config=None, lifespan="off", ws="none")
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, connection = await loop.connect_accepted_socket(lambda: protocol(config, ServerState(), {}), theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        async with asyncio.timeout(20):
            yield Caller(reader, writer, connection)
    finally:
        writer.close()
        transport.abort()
        await asyncio.sleep(0)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request):
    return uvloop.run if request.param == "uvloop" else asyncio.run


async def outcome_of(pieces, head, *, has_lanes):
    app = Reader()
    async with connected(app, has_lanes=has_lanes) as caller:
        await caller.send([head, *pieces])
        return await caller.answer(), app.ways


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, len(BODY)), max_size=8), st.integers(0, 400_000))
def test_the_same_comes_out_of_a_lane_as_of_the_parser_however_a_body_is_cut(runner, places, missing_bytes):
    body = BODY[: len(BODY) - missing_bytes]
    edges = sorted({0, len(body), *(min(place, len(body)) for place in places)})
    pieces = [body[start:end] for start, end in pairwise(edges)]
    (lane, lane_ways), (plain, plain_ways) = (
        runner(outcome_of(pieces, post(body), has_lanes=has_lanes)) for has_lanes in (True, False)
    )
    assert lane == plain
    whole = 7 if not missing_bytes else 6 if missing_bytes < len(GOOD[5]) else 5
    assert lane[:whole] == OUTCOME[:whole]
    assert (lane_ways, plain_ways) == (["Lane"], ["PieceBody"])


def test_a_connection_goes_on_after_a_lane(run):
    async def scenario():
        app = Reader()
        async with connected(app) as caller:
            for _ in range(5):
                await caller.send([post(BODY), BODY])
                assert await caller.answer() == OUTCOME
            await caller.send([GET])
            assert await caller.answer() == []
        assert app.ways == ["Lane"] * 5

    run(scenario())


def test_a_connection_is_idle_after_a_lane_and_kept(run):
    async def scenario():
        async with connected(Reader(), header_seconds=0.2) as caller:
            await caller.send([post(BODY), BODY])
            assert await caller.answer() == OUTCOME
            await asyncio.sleep(0.5)
            await caller.send([GET])
            assert await caller.answer() == []

    run(scenario())


def test_who_waits_to_be_told_is_told_to_go_on(run):
    async def scenario():
        app = Reader()
        async with connected(app) as caller:
            await caller.send([post(BODY, b"expect: 100-continue\r\n")])
            assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await caller.send([BODY])
            assert await caller.answer() == OUTCOME
        assert app.ways == ["Lane"]

    run(scenario())


def test_requests_sent_before_and_behind_a_body_are_answered_in_turn(run):
    async def scenario():
        app = Reader()
        async with connected(app) as caller:
            sending = asyncio.create_task(caller.send([GET + post(BODY) + BODY + GET + post(BODY), BODY + GET]))
            assert [await caller.answer() for _ in range(5)] == [[], OUTCOME, [], OUTCOME, []]
            await sending
        assert app.ways == ["Lane"] * 2

    run(scenario())


@pytest.mark.parametrize("most", [0, 1, 6])
def test_what_is_left_of_a_body_is_thrown_away(run, most):
    async def scenario():
        async with connected(Reader(most=most)) as caller:
            for _ in range(3):
                await caller.send([post(BODY), BODY])
                assert await caller.answer() == OUTCOME[:most]
            await caller.send([GET])
            assert await caller.answer() == []

    run(scenario())


def test_what_is_left_of_a_body_is_not_waited_for_for_ever(run):
    async def scenario():
        async with connected(Reader(most=1), header_seconds=0.2) as caller:
            await caller.send([post(BODY), BODY[:-10]])
            assert await caller.answer() == OUTCOME[:1]
            assert await caller.reader.read() == b""

    run(scenario())


def test_whole_records_stand_where_the_client_goes_away(run):
    async def scenario():
        app = Reader()
        async with connected(app) as caller:
            await caller.send([post(BODY), BODY[:-10]])
            caller.writer.close()
            await app.ended.wait()
            await caller.connection.gone.wait()
            assert not caller.connection.connections
        assert app.errors == ["Disconnected"]
        assert app.seen == [OUTCOME[:-1]]

    run(scenario())


@pytest.mark.parametrize("drip", [b"", b"x"], ids=["stalls", "drips"])
def test_a_sender_that_is_too_slow_is_waited_for_no_longer(run, drip):
    async def scenario():
        app = Reader(stall_seconds=0.3)
        async with connected(app) as caller:
            await caller.send([post(BODY), BODY[:-1000]])
            while not app.errors:
                await caller.send([drip])
                await asyncio.sleep(0.02)
            assert await caller.answer() == OUTCOME[:-1]
        assert app.errors == ["BodyTimeout"]

    run(scenario())


@pytest.mark.parametrize(("body", "more"), [
    (BODY[: LEAST_BYTES - 1], b""),
    (BODY, b"transfer-encoding: chunked\r\n"),
], ids=["small", "chunked"])  # fmt: skip
def test_small_and_chunked_bodies_go_by_the_parser(run, body, more):
    async def scenario():
        app = Reader()
        async with connected(app) as caller:
            if more:
                head = post(b"", more).replace(b"content-length: 0\r\n", b"")
                await caller.send([head, b"%x\r\n" % len(body), body, b"\r\n0\r\n\r\n"])
            else:
                await caller.send([post(body), body])
            assert (await caller.answer())[:3] == OUTCOME[:3]
        assert app.ways == ["PieceBody"]

    run(scenario())


def test_nothing_is_written_to_a_buffer_whose_reader_was_cancelled(run):
    target = memoryview(bytearray(len(BODY)))

    async def scenario():
        begun, cancelled, looked = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            pace = Pace(stall_seconds=20, bytes_per_second=1)
            async with open_body(Request(scope, receive), max_bytes=64 << 20, pace=pace) as body:
                assert isinstance(body, Lane)
                filling = asyncio.create_task(body.fill(target))
                await begun.wait()
                filling.cancel()
                await asyncio.wait([filling])
                assert filling.cancelled()
                cancelled.set()
                await looked.wait()
            await Response(b"[]")(scope, receive, send)

        async with connected(app) as caller:
            half = len(BODY) // 2
            await caller.send([post(BODY), BODY[:half]])
            while target[half - 1] != BODY[half - 1]:  # noqa: ASYNC110 - nobody can tell but the buffer itself
                await asyncio.sleep(0.01)
            begun.set()
            await cancelled.wait()
            await caller.send([BODY[half : half + 50_000]])
            await asyncio.sleep(0.05)
            seen = bytes(target)
            looked.set()
            await caller.send([BODY[half + 50_000 :]])
            assert await caller.answer() == []
        assert seen[:half] == BODY[:half]
        assert seen[half:] == bytes(len(BODY) - half)

    run(scenario())


class TestLaneCheck:
    """The test at start that decides whether there are lanes at all."""

    def test_lanes_work_here(self, run):
        assert run(lanes_work(connection_class(header_seconds=20, max_connections=4)))

    def test_there_are_none_where_the_server_is_another_than_expected(self, run, caplog):
        class Changed(connection_class(header_seconds=20, max_connections=4)):
            def on_body(self, body):
                super().on_body(body)
                self.cycle.body = memoryview(bytes(self.cycle.body))  # a body that cannot be taken away

        assert not run(lanes_work(Changed))
        assert "plain way" in caplog.text

    def test_there_are_none_where_what_arrives_is_not_what_was_sent(self, run):
        class Forgetful(connection_class(header_seconds=20, max_connections=4)):
            def on_body(self, body):
                super().on_body(body)
                self.cycle.body[:1] = b"?"

        assert not run(lanes_work(Forgetful))
