"""Records leave straight from the LMDB map: whatever a reader does, it never gets what was written there later.

The service runs in a thread here, on a real socket and a real LMDB, so that pages can be freed and overwritten at the
worst moment: after a part of a record was sent, before the reader took it. The controls at the end take a guard away
each, and see another record's bytes arrive.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from kvcairn_service import connection, cursor, send
from kvcairn_service.app import build_app, compose
from kvcairn_service.settings import Settings
from kvcairn_service.state import Phase
from kvcairn_service.stores import Stores
from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.store import Put
from service_caller import Caller
from service_samples import HISTORY, RECORDS, chain, chain_records, fingerprint, layout_document, record
from sockets import eventually, head, read_to_end

MAP_BYTES = 96 << 20
TURNS = 4
OTHERS = b"\xee"
LARGE, SMALL = 1_971_328, 40_000
SHAPES = [pytest.param(1, LARGE, id="one-large"), pytest.param(4, LARGE, id="four-large"),
          pytest.param(1, SMALL * 5, id="one-middling"), pytest.param(5, SMALL, id="five-small")]  # fmt: skip


class Stage:
    """A service in this process, whose store and whose tasks a test may reach into."""

    def __init__(self, directory, loop):
        settings = Settings(data=directory, capacity=32 << 20, stall_seconds=20)
        self.records = LmdbStore(directory, map_bytes=MAP_BYTES)
        self.service = compose(settings, Stores(self.records, self.records, "g", 32 << 20))
        http = connection.connection_class(header_seconds=20, max_connections=64)
        config = uvicorn.Config(build_app(self.service), http=http, loop=loop, lifespan="on", log_config=None)
        self.server = uvicorn.Server(config)
        self.loop = None
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))
        self.thread.start()
        assert eventually(lambda: self.server.started)

    def close(self):
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def tasks(self):
        return [task for task in self.server.server_state.tasks if not task.done()]

    def cancel(self):
        """Cancel the one request that is being answered."""
        (task,) = self.tasks()
        task.get_loop().call_soon_threadsafe(task.cancel)
        assert eventually(lambda: not self.tasks())

    def overwrite(self, *, then_restore):
        """Free every record's pages, write something else there, and, if asked, the same records somewhere else."""
        kept = [Put(key, entry, [self.records.get(key)]) for key, entry in self.records.scan()]
        self.records.write([], [put.key for put in kept]).result(10)
        for turn in range(TURNS):  # what is freed is taken again two transactions later
            others = [Put(_other(put.key, turn), put.entry, [OTHERS * len(put.data[0])]) for put in kept]
            self.records.write(others).result(10)
        if then_restore:
            self.records.write(kept).result(10)
        self.records.write([], [_other(put.key, turn) for put in kept for turn in range(TURNS)]).result(10)


def _other(key, turn):
    return key._replace(tenant=f"other-{turn}")


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request):
    return request.param


@pytest.fixture
def stage(tmp_path, loop, monkeypatch):
    monkeypatch.setattr(connection, "LOOPBACK_SEND_BYTES", 64 << 10)  # so that little of a record fits into the kernel
    stage = Stage(tmp_path / "data", loop)
    yield stage
    stage.close()


def stored(stage, count, size_bytes):
    """A stored chain: its layout, its keys, and its records as they must arrive."""
    document = layout_document(history_bytes=size_bytes)
    keys = chain(document, count)
    records = chain_records(document, keys)
    with httpx.Client(base_url=stage.url, trust_env=False) as http:
        caller = Caller(http)
        caller.register(document)
        assert caller.store(b"".join(records)).json()["stored"] == count
    return document, keys, b"".join(records)


def ask(stage, document, keys):
    """Ask for all of these and read nothing."""
    body = json.dumps(Caller.naming(document, *[("history", key) for key in keys])).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    sock.settimeout(30)
    sock.connect(stage.socket.getsockname())
    request = head("/v1/records:fetch", len(body), "application/json") + body
    sock.sendall(request.replace(b"host:", b"connection: close\r\nhost:"))
    return sock


def wait_until_stalled(stage, *, whole):
    """Return when the response was handed over as far as it goes without a reader."""

    def is_stalled():
        sent = stage.service.counters.sent_bytes
        time.sleep(0.1)
        return stage.service.counters.sent_bytes == sent and (stage.tasks() or sent == len(whole))

    assert eventually(is_stalled)


def body_of(answer):
    return answer.split(b"\r\n\r\n", 1)[1] if b"\r\n\r\n" in answer else b""


@pytest.mark.parametrize(("count", "size_bytes"), SHAPES)
def test_a_reader_that_stalls_while_the_pages_are_overwritten_gets_the_right_bytes(stage, count, size_bytes):
    document, keys, whole = stored(stage, count, size_bytes)
    with ask(stage, document, keys) as sock:
        wait_until_stalled(stage, whole=whole)
        stage.overwrite(then_restore=True)
        assert body_of(read_to_end(sock)) == whole


@pytest.mark.parametrize(("count", "size_bytes"), SHAPES[:2])
@pytest.mark.parametrize("end", ["cancelled", "deleted", "shut down"])
def test_a_response_that_ends_early_is_cut_and_never_wrong(stage, count, size_bytes, end):
    """Cancelled, promised records gone, or the service ending: what did arrive is the beginning of the right answer."""
    document, keys, whole = stored(stage, count, size_bytes)
    with ask(stage, document, keys) as sock:
        wait_until_stalled(stage, whole=whole)
        if end == "cancelled" and stage.tasks():
            stage.cancel()
        elif end == "shut down":
            stage.server.should_exit = stage.server.force_exit = True
        with contextlib.suppress(Exception):  # a store that the service has closed meanwhile has no pages to overwrite
            stage.overwrite(then_restore=False)
        assert whole.startswith(body_of(read_to_end(sock)))


@pytest.mark.parametrize(("count", "size_bytes"), SHAPES)
def test_where_the_socket_cannot_be_written_directly_copies_are_sent(stage, count, size_bytes, monkeypatch):
    """As under TLS, where the transport has its own words for what goes out."""
    monkeypatch.setattr(connection.Connection, "descriptor", None)
    document, keys, whole = stored(stage, count, size_bytes)
    with ask(stage, document, keys) as sock:
        wait_until_stalled(stage, whole=whole)
        stage.overwrite(then_restore=True)
        assert body_of(read_to_end(sock)) == whole
    assert stage.service.counters.sent_bytes == len(whole)


def test_under_another_server_copies_are_sent(tmp_path):
    """One that knows nothing of our connections, here httpx's own."""
    records = LmdbStore(tmp_path / "data", map_bytes=MAP_BYTES)
    service = compose(Settings(data=tmp_path / "data", capacity=32 << 20), Stores(records, records, "g", 32 << 20))
    service.phase = Phase.SERVING
    document = layout_document(history_bytes=LARGE)
    keys = chain(document, 3)
    body = b"".join(chain_records(document, keys))
    asked = Caller.naming(document, *[("history", key) for key in keys])

    async def exchange():
        transport = httpx.ASGITransport(build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await http.put(f"/v1/layouts/{fingerprint(document).hex()}", json=document)
            stored = await http.post("/v1/records:store", content=body, headers={"content-type": RECORDS})
            return stored.json()["stored"], (await http.post("/v1/records:fetch", json=asked)).content

    try:
        assert asyncio.run(exchange()) == (3, body)
    finally:
        service.store.close()


def test_no_transaction_is_open_while_a_reader_stalls(stage):
    """So it pins no page: the store is overwritten ten times, in a map that holds it six times."""
    document, keys, whole = stored(stage, 8, LARGE)
    with ask(stage, document, keys) as sock:
        wait_until_stalled(stage, whole=whole)
        assert stage.records._reading_now == 0
        for _ in range(10):
            stage.overwrite(then_restore=True)
        assert body_of(read_to_end(sock)) == whole
    assert (stage.records.path / "data.mdb").stat().st_size <= MAP_BYTES


@pytest.mark.parametrize("loop", ["uvloop"])
def test_control_a_transport_that_is_given_a_view_delivers_another_record(stage, monkeypatch):
    """What copying for a transport is for, and why no worker ever leaves one a view."""
    monkeypatch.setattr(connection.Connection, "descriptor", None)
    monkeypatch.setattr(send, "bytes", lambda view: view, raising=False)
    document, keys, whole = stored(stage, 1, LARGE)
    with ask(stage, document, keys) as sock:
        wait_until_stalled(stage, whole=whole)
        stage.overwrite(then_restore=True)
        answer = body_of(read_to_end(sock))
    assert len(answer) == len(whole)
    assert answer != whole
    assert OTHERS * 4096 in answer


WAYS = pytest.mark.parametrize("is_written_directly", [True, False], ids=["pumped", "copied"])


@WAYS
def test_a_record_that_is_stored_anew_in_the_middle_of_its_sending_is_cut(stage, monkeypatch, is_written_directly):
    """Never the first part of one and the rest of the other, though both are good records of that key."""
    answer, whole = answer_across_a_replacement(stage, monkeypatch, is_written_directly=is_written_directly)
    assert len(answer) < len(whole)
    assert whole.startswith(answer)


@WAYS
def test_control_without_the_look_at_its_header_the_rest_of_another_record_arrives(
    stage, monkeypatch, is_written_directly
):
    class Unlooking(cursor.Cursor):
        def unsent(self, pieces):
            self._header = bytes(pieces[0][: len(self._header)])
            return super().unsent(pieces)

    monkeypatch.setattr(send, "Cursor", Unlooking)
    answer, whole = answer_across_a_replacement(stage, monkeypatch, is_written_directly=is_written_directly)
    assert len(answer) == len(whole)
    assert answer[:128] == whole[:128]
    assert answer[-4096:] == OTHERS * 4096


def answer_across_a_replacement(stage, monkeypatch, *, is_written_directly):
    """What arrives of a record that is replaced by another good one of its key when a part of it has been sent."""
    if not is_written_directly:
        monkeypatch.setattr(connection.Connection, "descriptor", None)
    document, keys, whole = stored(stage, 1, LARGE)
    other = record(document, HISTORY, keys[0], position=document["block_tokens"], payload=OTHERS * LARGE)
    assert len(other) == len(whole)
    with ask(stage, document, keys) as sock:
        wait_until_stalled(stage, whole=whole)
        ((key, entry),) = stage.records.scan()
        stage.records.write([Put(key, entry, [other])]).result(10)
        return body_of(read_to_end(sock)), whole
