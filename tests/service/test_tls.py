"""TLS and mutual TLS of the TCP port: what passes, who is refused and how they are told, and new certificates."""

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from certificates import place, write, write_ca
from kvcairn_service.cli import app
from kvcairn_service.errors import SettingsError
from kvcairn_service.settings import load_settings
from kvcairn_service.tls import HANDSHAKES, ServerTls, TlsFiles, server_context
from service_caller import Caller
from service_samples import chain, chain_records, layout_document
from serving import running_service, service_environment
from sockets import eventually, head

ADMIN = "admin-secret-token"
NAME = "127.0.0.1"
CONNECTIONS = 8


class Fleet:
    """Two authorities, the files of one service and of four clients, and the service with mutual TLS on them."""

    def __init__(self, directory):
        self.directory = directory
        self.ours, theirs = trustme.CA(), trustme.CA()
        self.ca = write_ca(self.ours, directory / "ca.crt")
        self.server = write(self.ours, directory, NAME)
        self.client = write(self.ours, directory, "engine")
        self.stranger = write(theirs, directory, "stranger")
        self.expired = write(self.ours, directory, "expired", valid_days=-10)

    def flags(self):
        return ("--tls-cert", self.server.cert, "--tls-key", self.server.key, "--tls-client-ca", self.ca)

    def context(self, shown=None):
        """A client's context that trusts the service, and shows these files."""
        context = ssl.create_default_context(cafile=self.ca)
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context

    def http(self, shown=None):
        headers = {"Authorization": f"Bearer {ADMIN}"}
        return httpx.Client(
            base_url=self.service.url, verify=self.context(shown), headers=headers, trust_env=False, timeout=10
        )

    def connect(self, shown=None, *, buffer_bytes=None):
        sock = socket.socket()
        sock.settimeout(30)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.connect((NAME, self.port))
        return self.context(shown).wrap_socket(sock, server_hostname=NAME)

    @property
    def port(self):
        return int(self.service.url.rsplit(":", 1)[1])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fleet")
    made = Fleet(directory)
    env = {
        "KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_STALL_SECONDS": "2", "KVCAIRN_HEADER_SECONDS": "2",
        "KVCAIRN_MAX_CONNECTIONS": str(CONNECTIONS), "KVCAIRN_UDS": str(directory / "s"),
    }  # fmt: skip
    flags = tuple(map(str, made.flags()))
    with running_service(directory / "data", *flags, "--capacity", "512MiB", env=env) as made.service:
        yield made


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
            assert _private_bytes(fleet.service.pid) - before < 24 << 20, "one record on its way, and its ciphertext"
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


class TestProbe:
    """The health check of a container, which has no certificate to show."""

    @staticmethod
    def probed(variables):
        command = [sys.executable, "-m", "kvcairn_service.probe"]
        env = service_environment({name: str(value) for name, value in variables.items()})
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    def test_under_mutual_tls_it_goes_by_the_unix_socket(self, fleet):
        mutual = {
            "KVCAIRN_PORT": fleet.port, "KVCAIRN_TLS_CERT": fleet.server.cert, "KVCAIRN_TLS_CLIENT_CA": fleet.ca
        }  # fmt: skip
        path = fleet.service.uds_url.removeprefix("unix:")
        assert self.probed({**mutual, "KVCAIRN_UDS": path}).returncode == 0
        refused = self.probed(mutual)
        assert (refused.returncode, "KVCAIRN_UDS" in refused.stderr) == (1, True)
        assert self.probed({"KVCAIRN_UDS": f"{path}.not"}).returncode == 1

    def test_over_tls_it_needs_no_certificate_and_neither_does_anybody_else(self, fleet, tmp_path):
        flags = ("--tls-cert", str(fleet.server.cert), "--tls-key", str(fleet.server.key))
        with running_service(tmp_path / "data", *flags) as service:
            port = service.url.rsplit(":", 1)[1]
            assert self.probed({"KVCAIRN_PORT": port, "KVCAIRN_TLS_CERT": fleet.server.cert}).returncode == 0
            assert self.probed({"KVCAIRN_PORT": port}).returncode == 1, "which asks by plain HTTP"
            with httpx.Client(base_url=service.url, verify=fleet.context(), trust_env=False) as http:
                assert http.get("/v1/service").json()["open"] is True


class TestCommands:
    """The command line over mutual TLS."""

    @pytest.fixture
    def kvcairn(self, monkeypatch, fleet):
        monkeypatch.setenv("KVCAIRN_URL", fleet.service.url)
        monkeypatch.setenv("KVCAIRN_TOKEN", ADMIN)

        def run(**variables):
            for name, value in variables.items():
                monkeypatch.setenv(name, str(value))
            return CliRunner().invoke(app, ["stats", "--json"])

        return run

    def test_commands_take_whom_to_trust_and_what_to_show_from_the_environment(self, kvcairn, fleet):
        shown = {"KVCAIRN_CLIENT_CERT": fleet.client.cert, "KVCAIRN_CLIENT_KEY": fleet.client.key}
        done = kvcairn(KVCAIRN_TLS_CA=fleet.ca, **shown)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["tenant"] == "default"

    def test_commands_say_which_variable_is_missing(self, kvcairn, fleet):
        assert "KVCAIRN_TLS_CA" in kvcairn().stderr
        without = kvcairn(KVCAIRN_TLS_CA=fleet.ca)
        assert (without.exit_code, "KVCAIRN_CLIENT_CERT" in without.stderr) == (1, True)
        assert "KVCAIRN_TLS_CA" in kvcairn(KVCAIRN_TLS_CA="/nowhere").stderr


class TestSettings:
    """What is refused at the start, by name."""

    @pytest.mark.parametrize(
        ("given", "named"),
        [
            ({"tls_cert": "c"}, "tls_key"),
            ({"tls_key": "k"}, "tls_cert"),
            ({"tls_client_ca": "a"}, "tls_client_ca"),
            ({"tls_cert": "c", "tls_key": "k", "host": "none", "uds": "/s"}, "Unix socket"),
        ],
    )
    def test_settings_that_contradict_each_other(self, given, named):
        with pytest.raises(SettingsError, match=named):
            load_settings({"data": "/d", **given})

    def test_files_that_are_no_good_are_named(self, fleet, tmp_path):
        nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
        empty.write_text("")
        locked = tmp_path / "locked"
        locked.write_bytes(_encrypted(fleet.server.key.read_bytes()))
        for files, named in (
            (TlsFiles(nowhere, fleet.server.key), "tls_cert.*nowhere"),
            (TlsFiles(fleet.server.cert, empty), "tls_key.*empty"),
            (TlsFiles(fleet.server.cert, fleet.client.key), "no pair"),
            (TlsFiles(fleet.server.cert, locked), "locked is encrypted"),
            (TlsFiles(*fleet.server, client_ca=empty), "tls_client_ca.*empty"),
        ):
            with pytest.raises(SettingsError, match=named):
                server_context(files)

    def test_a_closed_service_that_others_reach_without_tls_says_that_tokens_travel_in_clear(
        self, closed_service, fleet
    ):
        assert closed_service.log().count("in clear") == 1
        assert "in clear" not in fleet.service.log()


class TestRotation:
    """New certificates without a restart. Last, since they change the service's."""

    def test_a_hangup_reads_them_again_and_a_half_changed_pair_is_left_alone(self, fleet):
        before = _serial(fleet)
        fresh = fleet.ours.issue_cert(NAME)
        place(fresh, fleet.server.cert, fleet.directory / "elsewhere")
        _hang_up(fleet, "tls was not read again")
        assert _serial(fleet) == before
        place(fresh, fleet.server.cert, fleet.server.key)
        _hang_up(fleet, "tls was read again")
        assert _serial(fleet) != before

    def test_files_that_change_are_found_without_a_word(self, fleet):
        before = _serial(fleet)
        place(fleet.ours.issue_cert(NAME), fleet.server.cert, fleet.server.key)
        assert eventually(lambda: _serial(fleet) != before)

    def test_a_client_authority_that_is_exchanged_counts_from_the_next_connection_on(self, fleet):
        other = trustme.CA()
        write_ca(other, fleet.ca.with_suffix(".new"))
        trusted = fleet.ca.read_bytes()
        fleet.ca.write_bytes(fleet.ca.with_suffix(".new").read_bytes())
        _hang_up(fleet, "tls was read again")
        fleet.ca.write_bytes(trusted)  # the clients here trust by the same file
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"), fleet.connect(fleet.client) as sock:
            sock.recv(1)
        _hang_up(fleet, "tls was read again")
        with fleet.http(fleet.client) as http:
            assert http.get("/readyz").status_code == 200


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


def _hang_up(fleet, expected):
    said = fleet.service.log().count(expected)
    fleet.service.hang_up()
    assert eventually(lambda: fleet.service.log().count(expected) > said), fleet.service.log()


def _serial(fleet):
    """The number of the certificate that a new connection gets."""
    with fleet.connect(fleet.client) as sock:
        return sock.getpeercert()["serialNumber"]


def _answered(fleet):
    with fleet.http(fleet.client) as http:
        return Caller(http).metric("kvcairn_request_duration_seconds_count", route="/healthz")


def _encrypted(key):
    loaded = serialization.load_pem_private_key(key, password=None)
    how = serialization.BestAvailableEncryption(b"secret")
    return loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


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
