"""TLS and mutual TLS of the TCP port: what passes, and who is refused and how they are told."""

import contextlib
import json
import socket
import ssl
import time

import httpx
import pytest

from kvcairn_service.tls import HANDSHAKES, ServerTls, TlsFiles
from service_caller import Caller
from service_samples import chain, chain_records, layout_document
from sockets import eventually, head
from tls_fleet import ADMIN, CONNECTIONS, NAME, running_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(scope="module")
def large(fleet):
    """Twenty stored records of 4 MiB: more than all buffers on the way hold."""
    document = layout_document(history_bytes=4 << 20)
    keys = chain(document, 20)
    records = chain_records(document, keys)
    with fleet.http(fleet.client) as http:
        caller = Caller(http)
        caller.register(document)
        assert caller.store(iter(records[:10])).json()["stored"] == 10
        whole = b"".join(records[10:])
        assert caller.store(whole).json()["stored"] == 10, "of known length, for which plain HTTP has a lane"
    return document, keys, b"".join(records)


class TestPassing:
    """Records over mutual TLS."""

    def test_large_records_come_back_byte_for_byte(self, fleet, large):
        document, keys, whole = large
        with fleet.http(fleet.client) as http:
            assert Caller(http).fetch(document, *[("history", key) for key in keys]).content == whole

    def test_a_reader_that_stalls_is_cut_and_the_rest_is_not_kept_in_memory(self, fleet, large):
        document, keys, whole = large
        body = json.dumps(Caller.naming(document, *[("history", key) for key in keys])).encode()
        token = f"authorization: Bearer {ADMIN}\r\n".encode()
        asked = head("/v1/records:fetch", len(body), "application/json").replace(b"\r\n", b"\r\n" + token, 1)
        with fleet.http(fleet.client) as http, fleet.connect(fleet.client, buffer_bytes=64 << 10) as sock:
            caller = Caller(http)
            before = _private_bytes(fleet.service.pid)
            sock.sendall(asked + body)
            assert eventually(lambda: caller.metric("kvcairn_held_records") == len(keys))
            assert _private_bytes(fleet.service.pid) - before < 16 << 20, "pieces, of eighty MiB"
            assert eventually(lambda: caller.metric("kvcairn_held_records") == 0)
            answer = _read_to_end(sock).split(b"\r\n\r\n", 1)[1]
        assert len(answer) < len(whole)
        assert whole.startswith(answer)

    def test_a_client_certificate_replaces_no_token(self, fleet):
        with fleet.http(fleet.client) as http:
            assert http.get("/v1/service").status_code == 200
            del http.headers["Authorization"]
            assert http.get("/v1/service").status_code == 401

    def test_the_unix_socket_stays_plain(self, fleet):
        transport = httpx.HTTPTransport(uds=fleet.service.uds_url.removeprefix("unix:"))
        with httpx.Client(transport=transport, base_url="http://localhost") as http:
            assert http.get("/readyz").json() == {"status": "ready"}


class TestRefused:
    """Who does not get in, and what they are told."""

    @pytest.mark.parametrize(
        ("shown", "alert"),
        [(None, "CERTIFICATE_REQUIRED"), ("stranger", "UNKNOWN_CA"), ("expired", "CERTIFICATE_EXPIRED")],
    )
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_client_without_a_certificate_that_is_trusted_is_told_so(self, fleet, shown, alert, version):
        context = fleet.context(getattr(fleet, shown) if shown else None)
        context.maximum_version = version
        if version is ssl.TLSVersion.TLSv1_2 and shown is None:
            alert = "HANDSHAKE_FAILURE"
        before = _answered(fleet)
        assert alert in str(_refusal(fleet, context))
        assert _answered(fleet) == before, "no request of theirs was read"

    def test_plain_http_is_told_that_this_is_no_plain_port(self, fleet):
        started = time.monotonic()
        answer = httpx.get(f"http://{NAME}:{fleet.port}/v1/service", trust_env=False)
        assert time.monotonic() - started < 5
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
        assert "https://" in answer.json()["detail"]

    def test_tls_older_than_1_2_is_refused(self, fleet):
        context = fleet.context(fleet.client)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection((NAME, fleet.port), 10) as sock,
            pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
        ):
            context.wrap_socket(sock, server_hostname=NAME)

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_no_ticket_lets_a_client_in_without_another_look_at_its_certificate(self, fleet, version):
        context = fleet.context(fleet.client)
        context.maximum_version = version
        with (
            socket.create_connection((NAME, fleet.port), 10) as sock,
            context.wrap_socket(sock, server_hostname=NAME) as wrapped,
        ):
            wrapped.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert wrapped.recv(100).startswith(b"HTTP/1.1 200")
            assert not wrapped.session.has_ticket

    def test_a_handshake_that_never_comes_is_cut(self, fleet):
        """Also where there are more of them than may be."""
        with contextlib.ExitStack() as opened:
            silent = [
                opened.enter_context(socket.create_connection((NAME, fleet.port), 10))
                for _ in range(CONNECTIONS + HANDSHAKES + 40)
            ]
            ended = [sock for sock in silent if sock.recv(1) == b""]
            assert len(ended) == len(silent)
        with fleet.http(fleet.client) as http:
            assert eventually(lambda: http.get("/readyz").status_code == 200), "all were let go of"

    def test_handshakes_count_from_their_first_byte_on_until_they_are_let_go_of(self, fleet):
        """uvicorn counts connections that have shaken hands, and would let any number of others wait."""
        tls = ServerTls(TlsFiles(*fleet.server), max_connections=3)

        def accept():
            return tls.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)

        waiting = [accept() for _ in range(3)]
        with pytest.raises(ConnectionAbortedError, match="more than 3"):
            accept()
        waiting.pop()
        assert accept() is not None

    def test_failed_handshakes_are_counted_and_only_some_are_logged(self, fleet):
        with fleet.http(fleet.client) as http:
            caller = Caller(http)
            before = caller.metric("kvcairn_tls_handshakes_failed_total")
            for _ in range(150):
                with socket.create_connection((NAME, fleet.port), 10) as sock:
                    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    sock.recv(100)
            assert caller.metric("kvcairn_tls_handshakes_failed_total") == before + 150
        assert 1 <= fleet.service.log().count("handshake failed: http request") < 120


def _refusal(fleet, context):
    """The error of a client that shakes hands and asks for something, as soon as it is told."""
    try:
        with (
            socket.create_connection((NAME, fleet.port), 10) as sock,
            context.wrap_socket(sock, server_hostname=NAME) as wrapped,
        ):
            wrapped.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            return wrapped.recv(100)
    except OSError as error:
        return error


def _answered(fleet):
    with fleet.http(fleet.client) as http:
        return Caller(http).metric("kvcairn_request_duration_seconds_count", route="/healthz")


def _private_bytes(pid):
    """What the process alone holds: the pages of the mapped file do not count."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:  # noqa: PTH123 - no file of the project's
        return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_Dirty"))


def _read_to_end(sock):
    parts = []
    with contextlib.suppress(OSError):
        while part := sock.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)
