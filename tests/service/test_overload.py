"""More than the service can do at once: one tenant floods it, another is served, and nothing grows without bound.

One closed service with low limits and two tenants, `flood` and `calm`; what it holds is read from /metrics and from the
kernel. How long anybody waits is for benchmarks/overload.py.
"""

import json
import re
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service_caller import Caller
from service_samples import chain, chain_records, fingerprint, layout_document
from serving import running_service
from sockets import connect, eventually, head, read_to_end

ADMIN = "admin-secret-token"
MAX_REQUESTS, MAX_CONNECTIONS = 16, 48
SHARE = MAX_REQUESTS * 3 // 4
READERS = SHARE - 2
"""More than the service has workers, and few enough that others are admitted beside them."""
LARGE_BYTES = 24 << 20
ENV = {
    "KVCAIRN_ADMIN_TOKEN": ADMIN,
    "KVCAIRN_MAX_REQUESTS": str(MAX_REQUESTS),
    "KVCAIRN_MAX_CONNECTIONS": str(MAX_CONNECTIONS),
    "KVCAIRN_MAX_RECORD_BYTES": str(LARGE_BYTES),
    "KVCAIRN_UPLOAD_MEMORY_BYTES": "64MiB",
    "KVCAIRN_SCRUB_BYTES_PER_SECOND": "0",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running_service(tmp_path_factory.mktemp("overload") / "data", "--capacity", "512MiB", env=ENV) as running:
        yield running


@pytest.fixture(scope="module")
def admin(service):
    with service.http(token=ADMIN) as http:
        yield Caller(http)


@pytest.fixture(scope="module")
def tokens(admin):
    names = ("flood", "calm")
    for name in names:
        assert admin.http.put(f"/v1/tenants/{name}", json={}).status_code == 200
    return {name: admin.http.post(f"/v1/tenants/{name}/tokens").json()["token"] for name in names}


@pytest.fixture
def calm(service, tokens):
    with service.http(token=tokens["calm"]) as http:
        yield Caller(http)


@pytest.fixture
def flood(service, tokens):
    with service.http(token=tokens["flood"]) as http:
        yield Caller(http)


@pytest.fixture(autouse=True)
def nothing_is_left(service, admin):
    """After each test, whatever it did: every gauge of what is going on is zero again, and the log has no traceback."""
    yield
    names = ("fetches_in_flight", "held_records", "upload_memory_bytes")
    assert eventually(lambda: [admin.metric(f"kvcairn_{name}") for name in names] == [0] * len(names))
    queues = ("starting", "decoding", "questions", "sending", "upload_memory")
    assert eventually(lambda: [admin.metric("kvcairn_waiting", what=each) for each in queues] == [0] * len(queues))
    assert eventually(lambda: admin.metric("kvcairn_requests_in_flight") == 1)
    assert "Traceback" not in service.log()
    assert "ASGI callable" not in service.log()


def private_bytes(service):
    """What the process has for itself: neither the map nor the page cache."""
    found = re.search(r"Anonymous: +(\d+) kB", Path(f"/proc/{service.pid}/smaps_rollup").read_text())
    return int(found[1]) << 10


@contextmanager
def growth_below(service, most_bytes):
    """What the process takes for itself inside the block, at its end, stays below so much more."""
    before = private_bytes(service)
    yield
    assert private_bytes(service) - before < most_bytes


def signed(request, token):
    return request.replace(b"host:", f"authorization: Bearer {token}\r\nhost:".encode(), 1)


def stalling(service, token, path="/v1/records:store"):
    """A connection whose request has begun and goes on no more."""
    sock = connect(service)
    sock.sendall(signed(head(path, 1000), token) + b"K")
    return sock


def fetching(service, token, document, keys):
    """A connection on which all of these were asked for, and nothing is read."""
    body = json.dumps(Caller.naming(document, *[("history", key) for key in keys])).encode()
    return asking(service, signed(head("/v1/records:fetch", len(body), "application/json") + body, token))


def asking(service, request):
    """A connection that has little room for an answer."""
    sock = connect(service, buffer_bytes=64 << 10)
    sock.sendall(request)
    return sock


@pytest.fixture(scope="module")
def large(service, tokens):
    """A stored record of the largest size, of the tenant `flood`."""
    document = layout_document(history_bytes=LARGE_BYTES - 4096)
    keys = chain(document, 1)
    (record,) = chain_records(document, keys)
    with service.http(token=tokens["flood"]) as http:
        flood = Caller(http)
        flood.register(document)
        assert flood.store(record).json()["stored"] == 1
    return document, keys, record


class TestRequests:
    """More at once than may be answered at once."""

    def test_a_flood_is_refused_beyond_its_share_and_another_tenant_is_not(self, service, tokens, admin, calm, flood):
        refused_before = admin.metric("kvcairn_refused_requests_total")
        with ExitStack() as stack:
            sent = [stack.enter_context(stalling(service, tokens["flood"])) for _ in range(2 * MAX_REQUESTS)]
            assert eventually(lambda: admin.metric("kvcairn_requests_in_flight") == SHARE + 1)
            answers = [flood.http.get("/v1/stats") for _ in range(30)]
            assert {each.status_code for each in answers} == {429}
            assert {each.headers["retry-after"] for each in answers} == {"1", "2"}, "those refused together are spread"
            assert "share" in answers[0].json()["detail"]
            assert [calm.http.get("/v1/stats").status_code for _ in range(30)] == [200] * 30
            held = [stack.enter_context(stalling(service, tokens["calm"])) for _ in range(2)]
            assert eventually(lambda: admin.metric("kvcairn_requests_in_flight") == SHARE + len(held) + 1)
            assert calm.http.get("/v1/stats").status_code == 200
            assert calm.http.get("/readyz").status_code == 200
            refused = admin.metric("kvcairn_refused_requests_total") - refused_before
            assert refused == len(sent) - SHARE + len(answers)

    def test_strangers_take_nobodys_place(self, service, admin, calm):
        """A request without a token is refused before it counts, and its body is not waited for."""
        with ExitStack() as stack:
            for _ in range(MAX_REQUESTS):
                sock = stack.enter_context(stalling(service, "kvc_nobody_nothing"))
                assert sock.recv(4096).startswith(b"HTTP/1.1 401 ")
            assert admin.metric("kvcairn_requests_in_flight") == 1
            assert calm.http.get("/v1/stats").status_code == 200

    def test_lookups_of_all_the_keys_that_are_allowed_leave_others_served(self, service, tokens, calm):
        document = layout_document()
        keys = chain(document, 16_384)
        calm.register(document)
        assert calm.store(b"".join(chain_records(document, keys[:4]))).json()["stored"] == 4
        statuses = []

        def flooding():
            with service.http(token=tokens["flood"]) as http:
                own = Caller(http)
                own.register(document)
                statuses.extend(own.lookup(document, keys).status_code for _ in range(4))

        threads = [threading.Thread(target=flooding) for _ in range(8)]
        with growth_below(service, 128 << 20):
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                assert calm.lookup(document, keys[:8]).json()["history_blocks"] == 4
            for thread in threads:
                thread.join()
        assert statuses == [200] * 32


LONG = {
    "no keys": (b'"block_keys":[', b'"",', b'""]', "block_keys.0"),
    "numbers": (b'"block_keys":[', b"0,", b"0]", "block_keys.0"),
    "no records": (b'"records":[', b"{},", b"{}]", "records.0"),
}


@pytest.mark.parametrize("size_bytes", [4 << 20, 100_000])
@pytest.mark.parametrize("name", LONG)
def test_a_body_full_of_mistakes_costs_no_more_than_one(service, calm, name, size_bytes):
    """As many as fit: a message about each would take seconds, and gigabytes."""
    start, item, end, place = LONG[name]
    front = b'{"layout":"' + b"0" * 64 + b'",' + start
    body = front + item * (size_bytes // len(item) - 100) + end + b"}"
    with growth_below(service, 192 << 20):
        answer = calm.http.post("/v1/prefixes:touch", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert place in answer.json()["detail"]
    assert "more" not in answer.json()["detail"], "none but the first was looked at"


def test_a_document_with_more_fields_than_any_has_is_refused_as_such(calm):
    fields = ",".join(f'"{number:x}":0' for number in range(10_000))
    for body in (f"{{{fields}}}", f'{{"layout":"{"0" * 64}","records":[{{{fields}}}]}}'):
        answer = calm.http.post("/v1/records:exists", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert "more than 16 fields" in answer.json()["detail"]


def test_a_mistake_deep_in_a_long_question_is_named_by_its_place(calm):
    """Though the question is checked a slice at a time."""
    records = [{"kind": "history", "key": "ab" * 32}] * 9000
    records[8765] = {"kind": "histories", "key": "ab" * 32}
    answer = calm.http.post("/v1/records:exists", json={"layout": "0" * 64, "records": records})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("records.8765.kind: ")


class TestReaders:
    """Answers that nobody takes."""

    @pytest.mark.parametrize(("way", "most_bytes"), [("fetch", 8 << 20), ("get", 4 * LARGE_BYTES + (8 << 20))])
    def test_readers_that_stall_cost_no_memory_however_large_their_records_are(
        self, service, tokens, admin, large, way, most_bytes
    ):
        """Together they have asked for ten records.

        Before a GET two threads look at its record, and each keeps the memory of two, as the allocator has it.
        """
        document, keys, record = large
        path = Caller.path(document, "history", keys[0])
        get = signed(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode(), tokens["flood"])
        with ExitStack() as stack, growth_below(service, most_bytes):
            if way == "fetch":
                readers = [fetching(service, tokens["flood"], document, keys) for _ in range(READERS)]
            else:
                readers = [asking(service, get) for _ in range(READERS)]
            for sock in readers:
                stack.enter_context(sock)
            assert eventually(lambda: admin.metric("kvcairn_fetches_in_flight") == READERS)
            assert eventually(lambda: is_steady(lambda: admin.metric("kvcairn_sent_bytes_total")))
            for sock in readers[::5]:
                assert whole_answer(sock) == record

    def test_more_readers_than_workers_leave_one_to_another_tenant(self, service, tokens, calm, large):
        """They take a little again and again, so that each is worth waiting for."""
        document, keys, _ = large
        own = layout_document(history_bytes=300_000)
        own_keys = chain(own, 8)
        records = chain_records(own, own_keys)
        calm.register(own)
        assert calm.store(b"".join(records)).json()["stored"] == 8
        with ExitStack() as stack:
            readers = [stack.enter_context(fetching(service, tokens["flood"], document, keys)) for _ in range(READERS)]
            stop = threading.Event()
            threads = [threading.Thread(target=sipping, args=(sock, stop)) for sock in readers]
            for thread in threads:
                thread.start()
            for _ in range(10):
                assert calm.fetch(own, *[("history", key) for key in own_keys]).content == b"".join(records)
            stop.set()
            for thread in threads:
                thread.join()


def sipping(sock, stop):
    while not stop.wait(0.002) and sock.recv(16 << 10):
        pass


def is_steady(value):
    before = value()
    threading.Event().wait(0.2)
    return value() == before


def whole_answer(sock):
    """The body of an answer with a length."""
    answer = bytearray()
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(4096)
    start, _, rest = bytes(answer).partition(b"\r\n\r\n")
    body, length = bytearray(rest), int(re.search(rb"content-length: (\d+)", start)[1])
    while len(body) < length:
        part = sock.recv(1 << 20)
        assert part, "the answer was cut"
        body += part
    return body


def test_uploads_of_one_tenant_that_take_their_time_leave_memory_for_anothers(service, tokens, admin, calm, large):
    """Two of these would take all that large records may have."""
    document, _, _ = large
    bodies = [chain_records(document, chain(document, 1, seed=seed))[0] for seed in (1, 2, 3)]
    calm.register(document)
    with ExitStack() as stack:
        for body in bodies[:2]:
            sock = stack.enter_context(connect(service))
            sock.sendall(signed(head("/v1/records:store", len(body)), tokens["flood"]) + body[:4096])
        assert eventually(lambda: admin.metric("kvcairn_waiting", what="upload_memory") == 1)
        assert admin.metric("kvcairn_upload_memory_bytes") == len(bodies[0])
        assert calm.store(bodies[2]).json()["stored"] == 1
    calm.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")


class TestConnections:
    """More connections than may be open."""

    def test_silent_strangers_lock_nobody_out(self, service, admin, calm, flood):
        """Twice as many as there is room for; tenants keep the connections they have, and get new ones."""
        assert [each.http.get("/v1/stats").status_code for each in (admin, calm, flood)] == [200] * 3
        kept = [open_connection(each) for each in (admin, calm, flood)]
        closed_before = admin.metric("kvcairn_closed_connections_total")
        with ExitStack() as stack:
            for _ in range(2 * MAX_CONNECTIONS):
                stack.enter_context(connect(service))
            assert eventually(lambda: admin.metric("kvcairn_connections") == MAX_CONNECTIONS)
            assert [each.http.get("/v1/stats").status_code for each in (admin, calm, flood)] == [200] * 3
            assert [open_connection(each) for each in (admin, calm, flood)] == kept, "none had to connect again"
            for path in ("/healthz", "/readyz"):
                with service.http() as http:
                    assert http.get(path).status_code == 200
            assert admin.metric("kvcairn_closed_connections_total") - closed_before >= MAX_CONNECTIONS

    def test_half_a_head_or_a_body_behind_a_refusal_keeps_no_place(self, service, calm):
        with ExitStack() as stack:
            for _ in range(MAX_CONNECTIONS // 2):
                stack.enter_context(connect(service)).sendall(b"GET /v1/stats HTTP/1.1\r\nx: ")
                sock = stack.enter_context(stalling(service, "kvc_nobody_nothing"))
                assert sock.recv(4096).startswith(b"HTTP/1.1 401 ")
            for _ in range(4):
                with service.http(token=calm.http.headers["authorization"].split()[1]) as http:
                    assert http.get("/v1/stats").status_code == 200

    def test_when_all_are_answered_another_is_told_so_at_once(self, tmp_path):
        env = {"KVCAIRN_MAX_CONNECTIONS": "4"}
        with running_service(tmp_path / "data", env=env) as small, ExitStack() as stack:
            answered = [stack.enter_context(connect(small)) for _ in range(4)]
            for sock in answered:
                sock.sendall(head("/v1/records:store", 1000) + b"K")
            assert eventually(lambda: told(small).startswith(b"HTTP/1.1 503 "))
            assert b"more than 4 connections" in told(small)
            answered[0].close()
            with small.http() as http:
                assert eventually(lambda: http.get("/healthz").status_code == 200)


def told(service):
    """What a new connection is told before it has asked for anything; nothing where it is let in."""
    with connect(service) as sock:
        sock.settimeout(0.5)
        try:
            return read_to_end(sock)
        except TimeoutError:
            return b""


def open_connection(caller):
    """The connection that this caller's client keeps for its next request."""
    (connection,) = caller.http._transport._pool.connections
    return connection


def test_what_is_no_http_fills_no_log(service):
    before = service.log().count("Invalid HTTP request")
    for _ in range(300):
        with connect(service) as sock:
            sock.sendall(b"\0\r\n\r\n")
            assert read_to_end(sock).startswith(b"HTTP/1.1 400 ")
    assert 1 <= service.log().count("Invalid HTTP request") - before < 150
