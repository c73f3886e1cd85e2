"""Clients that vanish, stall, trickle or overdo it: what they took is given back, and nobody else is harmed."""

import contextlib
import json
import socket
import threading
import time

import pytest

from service_caller import Caller
from service_samples import chain, chain_records, fingerprint, layout_document
from serving import running_service
from sockets import connect, eventually, head, read_to_end

QUICK = {
    "KVCAIRN_STALL_SECONDS": "0.6",
    "KVCAIRN_HEADER_SECONDS": "0.6",
    "KVCAIRN_KEEP_ALIVE_SECONDS": "0.8",
    "KVCAIRN_MAX_CONNECTIONS": "24",
}


@pytest.fixture(scope="module")
def quick_service(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quick")
    with running_service(directory / "data", "--capacity", "512MiB", env=QUICK) as service:
        yield service


@pytest.fixture
def quick(quick_service):
    with quick_service.http() as http:
        yield Caller(http)


@pytest.fixture
def narrow(narrow_service):
    with narrow_service.http() as http:
        yield Caller(http)


def at_rest(caller):
    return (
        caller.metric("kvcairn_held_records") == 0
        and caller.metric("kvcairn_fetches_in_flight") == 0
        and caller.metric("kvcairn_upload_memory_bytes") == 0
        and caller.metric("kvcairn_requests_in_flight") == 1
    )


@pytest.fixture
def large(quick):
    """Forty stored records of 2 MiB: more than all socket buffers on the way hold."""
    document = layout_document(history_bytes=2 << 20)
    quick.register(document)
    keys = chain(document, 40)
    records = chain_records(document, keys)
    for start in range(0, 40, 10):
        pieces = iter(records[start : start + 10])
        answer = quick.store(pieces)
        assert answer.status_code == 200, answer.text
        assert answer.json()["stored"] == 10
    yield document, keys, b"".join(records)
    quick.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")


def fetching(service, document, keys, *, buffer_bytes=None):
    """A connection on which all of these were asked for and nothing was read yet."""
    body = json.dumps(Caller.naming(document, *[("history", key) for key in keys])).encode()
    sock = connect(service, buffer_bytes=buffer_bytes)
    sock.sendall(head("/v1/records:fetch", len(body), "application/json") + body)
    return sock


class TestDownloads:
    """A fetch holds records; every way it can end lets them go."""

    def test_a_client_that_vanishes_lets_its_records_go(self, quick_service, quick, large):
        """And nothing more is sent to nobody, nor counted."""
        document, keys, whole = large
        before = quick.metric("kvcairn_sent_bytes_total")
        sock = fetching(quick_service, document, keys)
        assert eventually(lambda: sock.recv(1 << 20) and quick.metric("kvcairn_sent_bytes_total") > before)
        assert quick.metric("kvcairn_held_records") == 40
        sock.close()
        assert eventually(lambda: at_rest(quick))
        sent_bytes = quick.metric("kvcairn_sent_bytes_total") - before
        assert 0 < sent_bytes < len(whole) / 2
        (kind,) = (
            each
            for each in quick.http.get("/v1/stats").json()["kinds"]
            if each["layout"] == fingerprint(document).hex()
        )
        assert kind["uses"] == kind["reused_records"] == sent_bytes // (len(whole) // 40)

    def test_a_reader_that_stalls_is_cut_and_never_gets_a_wrong_byte(self, quick_service, quick, large):
        document, keys, whole = large
        with fetching(quick_service, document, keys) as sock:
            assert eventually(lambda: quick.metric("kvcairn_held_records") == 40)
            assert eventually(lambda: at_rest(quick))
            answer = read_to_end(sock).split(b"\r\n\r\n", 1)[1]
        assert len(answer) < len(whole)
        assert whole.startswith(answer)

    def test_a_slow_reader_that_keeps_reading_is_served_to_the_end(self, quick_service, quick, large):
        """For three stall bounds it takes less than one record in each."""
        document, keys, whole = large
        with fetching(quick_service, document, keys) as sock:
            answer = bytearray()
            for _ in range(12):
                answer += sock.recv(256 << 10)
                time.sleep(0.15)
            expected = answer.index(b"\r\n\r\n") + 4 + len(whole)
            while len(answer) < expected:
                part = sock.recv(4 << 20)
                assert part, "cut"
                answer += part
        assert answer.endswith(whole)
        assert eventually(lambda: at_rest(quick))

    def test_a_reader_that_takes_a_little_now_and_then_is_cut(self, quick_service, quick, large):
        """In each stall bound something is taken, but fewer bytes than the least rate asks for."""
        document, keys, _ = large
        with fetching(quick_service, document, keys, buffer_bytes=16 << 10) as sock:
            assert eventually(lambda: quick.metric("kvcairn_held_records") == 40)
            for _ in range(100):
                sock.recv(4096)
                if at_rest(quick):
                    break
                time.sleep(0.05)
            assert at_rest(quick)

    def test_others_are_answered_while_a_large_fetch_runs(self, quick_service, quick, large):
        document, keys, _ = large
        with fetching(quick_service, document, keys):
            assert quick.http.get("/healthz").status_code == 200
            assert quick.lookup(document, keys).json()["history_blocks"] == 40

    def test_what_is_held_is_not_evicted(self, quick_service, quick, large):
        document, keys, whole = large
        with fetching(quick_service, document, keys) as sock:
            assert eventually(lambda: quick.metric("kvcairn_held_records") == 40)
            assert quick.exists(document, *[("history", key) for key in keys]) == [True] * 40
            quick.http.patch("/v1/tenants/default", json={"ttl_seconds": 0.001})
            try:
                assert quick.exists(document, ("history", keys[-1])) == [True]
            finally:
                quick.http.patch("/v1/tenants/default", json={"ttl_seconds": None})
            assert read_exactly(sock, len(whole)) == whole


def read_exactly(sock, size_bytes):
    """The body of an answer, of which that many bytes must come."""
    answer = bytearray()
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(4096)
    body = answer[answer.index(b"\r\n\r\n") + 4 :]
    while len(body) < size_bytes:
        part = sock.recv(1 << 20)
        assert part, "the answer was cut"
        body += part
    return bytes(body)


class TestUploads:
    """What a broken upload had whole stands; the rest leaves no trace."""

    @pytest.mark.parametrize("how", ["close", "reset"])
    def test_a_client_that_vanishes_leaves_whole_records_and_no_half_ones(self, quick_service, quick, how):
        document = layout_document(history_bytes=300_000)
        quick.register(document)
        keys = chain(document, 3)
        body = b"".join(chain_records(document, keys))
        sock = connect(quick_service)
        sock.sendall(head("/v1/records:store", len(body)) + body[:-1000])
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        else:
            assert eventually(lambda: quick.metric("kvcairn_upload_memory_bytes") > 0)
        sock.close()
        assert eventually(lambda: at_rest(quick))
        assert quick.exists(document, ("history", keys[2])) == [False]
        if how == "close":
            assert quick.lookup(document, keys).json()["history_blocks"] == 2
        assert quick.store(chain_records(document, keys)[2]).json()["stored"] == 1

    @pytest.mark.parametrize("piece_bytes", [0, 1, 16 << 10], ids=["stalls", "drips", "trickles"])
    def test_an_upload_that_is_too_slow_is_cut(self, quick_service, quick, piece_bytes):
        """The fastest of these brings 80 KiB a second, and a quarter of a megabyte is asked for."""
        document = layout_document(history_bytes=2 << 20)
        quick.register(document)
        body = chain_records(document, chain(document, 1))[0]
        with connect(quick_service) as sock:
            sock.sendall(head("/v1/records:store", len(body)) + body[:1000])
            if piece_bytes:
                threading.Thread(target=trickling, args=(sock, body[1000:], piece_bytes), daemon=True).start()
            answer = read_to_end(sock)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer.lower()
        assert eventually(lambda: at_rest(quick))

    def test_json_that_stalls_is_cut(self, quick_service):
        with connect(quick_service) as sock:
            sock.sendall(head("/v1/prefixes:lookup", 100, "application/json") + b'{"layout"')
            assert read_to_end(sock).startswith(b"HTTP/1.1 408 ")

    def test_uploads_together_keep_to_the_memory_they_share_and_never_wait_for_each_other(self, narrow_service, narrow):
        document = layout_document(history_bytes=(8 << 20) - 4096)
        narrow.register(document)
        bodies = [chain_records(document, chain(document, 4, seed=seed)) for seed in range(5)]
        spoiled = [each[:-1] + bytes([each[-1] ^ 1]) for each in bodies[0]]
        answers, peak = [], 0.0

        def upload(records):
            with narrow_service.http(timeout_seconds=60) as own:
                answers.append(Caller(own).store(iter(records)).json())

        threads = [threading.Thread(target=upload, args=(each,)) for each in [spoiled, *bodies]]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, narrow.metric("kvcairn_upload_memory_bytes"))
            time.sleep(0.005)
        assert sorted((each["stored"], len(each["rejected"])) for each in answers) == [(0, 4)] + [(4, 0)] * 5
        assert 0 < peak <= 16 << 20
        assert narrow.metric("kvcairn_upload_memory_bytes") == 0

    def test_small_records_pass_large_ones_that_take_their_time(self, narrow_service, narrow):
        large, small = layout_document(history_bytes=(8 << 20) - 4096), layout_document()
        narrow.register(large)
        narrow.register(small)
        bodies = [chain_records(large, chain(large, 1, seed=seed))[0] for seed in (7, 8)]
        with connect(narrow_service) as one, connect(narrow_service) as two:
            one.sendall(head("/v1/records:store", len(bodies[0])) + bodies[0][:128])
            assert eventually(lambda: narrow.metric("kvcairn_upload_memory_bytes") == len(bodies[0]))
            two.sendall(head("/v1/records:store", len(bodies[1])) + bodies[1][:128])
            assert eventually(lambda: narrow.metric("kvcairn_requests_in_flight") == 3)
            for record in chain_records(small, chain(small, 50)):
                assert narrow.store(record).json()["stored"] == 1
            assert narrow.metric("kvcairn_upload_memory_bytes") == len(bodies[0])
            for sock, body in zip((one, two), bodies, strict=True):
                sock.sendall(body[128:])
                assert b" 200 OK" in sock.recv(4096)
        assert eventually(lambda: at_rest(narrow))


def trickling(sock, rest, piece_bytes):
    try:
        for at in range(0, len(rest), piece_bytes):
            sock.sendall(rest[at : at + piece_bytes])
            time.sleep(0.2)
    except OSError:
        return


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"HELLO\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
]


class TestHeads:
    """A request's line and headers: bounded in size and in time."""

    def test_a_connection_that_never_speaks_is_closed(self, quick_service):
        with connect(quick_service) as sock:
            assert read_to_end(sock) == b""

    @pytest.mark.parametrize("start", [b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-a", b"\r\n"])
    def test_a_head_that_never_ends_is_closed(self, quick_service, start):
        with connect(quick_service) as sock:
            sock.sendall(start)
            assert read_to_end(sock) == b""

    def test_an_idle_connection_is_kept_for_a_while_and_then_closed(self, quick_service):
        request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with connect(quick_service) as sock:
            sock.sendall(request)
            assert b"200 OK" in sock.recv(4096)
            time.sleep(0.1)
            sock.sendall(request)
            assert b"200 OK" in read_to_end(sock)

    def test_empty_lines_do_not_keep_an_idle_connection(self, quick_service):
        with connect(quick_service) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            sock.sendall(b"\r\n")
            read_to_end(sock)

    def test_a_body_that_nobody_reads_is_thrown_away_and_then_cut(self, quick_service):
        with connect(quick_service) as sock:
            sock.sendall(head("/v1/records:store", 1000, "text/plain") + b"x" * 10)
            assert read_to_end(sock).startswith(b"HTTP/1.1 415 ")

    def test_a_body_that_nobody_reads_does_not_break_the_next_request(self, quick_service):
        with connect(quick_service) as sock:
            sock.sendall(head("/v1/records:store", 100_000, "text/plain") + b"x" * 100_000)
            assert b" 415 " in sock.recv(4096)
            sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert b"200 OK" in read_to_end(sock)

    def test_a_connection_is_idle_again_once_the_body_that_nobody_read_has_come(self, quick_service):
        with connect(quick_service) as sock:
            sock.sendall(head("/v1/records:store", 1000, "text/plain"))
            assert b" 415 " in sock.recv(4096)
            sock.sendall(b"x" * 1000)
            read_to_end(sock)

    @pytest.mark.parametrize("request_head", [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"x" * (65 << 10) + b"\r\n\r\n",
        b"GET /" + b"x" * (65 << 10) + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x-many: x\r\n" * 8000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-endless: " + b"x" * (300 << 10),
    ], ids=["header", "line", "many headers", "endless"])  # fmt: skip
    def test_a_head_over_64_kib_is_431(self, quick_service, request_head):
        with connect(quick_service) as sock:
            try:
                sock.sendall(request_head)
            except ConnectionError:
                pytest.skip("cut before the answer could be read")
            answer = read_to_end(sock)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")

    def test_a_head_just_under_64_kib_is_read(self, quick_service):
        with connect(quick_service) as sock:
            large = b"x" * (63 << 10)
            sock.sendall(
                b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-l: " + large + b"\r\n\r\n"
            )
            assert b"200 OK" in read_to_end(sock)

    @pytest.mark.parametrize("garbage", GARBAGE)
    def test_what_is_no_http_is_a_problem_too(self, quick_service, garbage):
        with connect(quick_service) as sock:
            sock.sendall(garbage)
            answer = read_to_end(sock)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in answer
        assert b"x-request-id" in answer


class TestBounds:
    """How much at once."""

    def test_too_many_requests_at_once_are_429_and_probes_still_pass(self, narrow_service, narrow):
        http = narrow.http
        with contextlib.ExitStack() as sockets:
            waiting = [sockets.enter_context(connect(narrow_service)) for _ in range(8)]
            for sock in waiting:
                sock.sendall(head("/v1/records:store", 1000) + b"K")
            assert eventually(lambda: http.get("/v1/stats").status_code == 429)
            refused = http.get("/v1/stats")
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert http.get("/readyz").status_code == 200
            waiting[0].close()
            assert eventually(lambda: http.get("/v1/stats").status_code == 200)

    def test_connections_that_never_speak_make_way_for_others_the_oldest_first(self, quick_service, quick):
        """Before anybody's time is up: the service's patience with a silent one is as long as this test at least."""
        silent = [connect(quick_service) for _ in range(24)]
        for _ in range(12):
            with quick_service.http() as http:
                assert http.get("/v1/stats").status_code == 200
        assert quick.metric("kvcairn_connections") <= 24
        assert quick.metric("kvcairn_closed_connections_total") >= 1
        assert silent[0].recv(1) == b""
        for sock in silent:
            sock.close()
