"""TLS as it is set up: what is refused at the start, new certificates without a restart, commands and probes."""

import json
import ssl
import subprocess
import sys

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from certificates import place, write_ca
from kvcairn_service.cli import app
from kvcairn_service.errors import SettingsError
from kvcairn_service.settings import load_settings
from kvcairn_service.tls import TlsFiles, server_context
from serving import running_service, service_environment
from sockets import eventually
from tls_fleet import ADMIN, NAME, running_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


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


def _hang_up(fleet, expected):
    said = fleet.service.log().count(expected)
    fleet.service.hang_up()
    assert eventually(lambda: fleet.service.log().count(expected) > said), fleet.service.log()


def _serial(fleet):
    """The number of the certificate that a new connection gets."""
    with fleet.connect(fleet.client) as sock:
        return sock.getpeercert()["serialNumber"]


def _encrypted(key):
    loaded = serialization.load_pem_private_key(key, password=None)
    how = serialization.BestAvailableEncryption(b"secret")
    return loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
