"""An open service: loopback and Unix socket, and nobody that a browser lets in."""

# ruff: noqa: S104 - what must not be bound has to be named

import stat
from pathlib import Path

import httpx
import pytest

from kvcairn_service.errors import SettingsError
from kvcairn_service.hosts import is_loopback, may_call
from kvcairn_service.server import bind_unix
from serving import running_service, start_service

ANY, ADMIN = "any token at all", "admin-secret-token"
GOOD_HOSTS = ["127.0.0.1", "127.0.0.1:7420", "localhost", "LOCALHOST:1", "[::1]:7420", "[::1]", "127.8.9.1"]
BAD_HOSTS = ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.evil.example", "", "user@127.0.0.1",
             "[::1].evil.example", "127.0.0.1:x", "evil.example#@127.0.0.1", "[fe80::1]", "0.0.0.0"]  # fmt: skip


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_loopback_hosts_may_call(host):
    assert may_call(host, None, ())
    assert may_call(host, f"http://{host}", ())


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_other_hosts_may_not(host):
    assert not may_call(host, None, ())
    assert not may_call("127.0.0.1", f"http://{host}", ())


@pytest.mark.parametrize("origin", ["null", "file://", "https://evil.example", "127.0.0.1", "ftp://127.0.0.1"])
def test_other_origins_may_not(origin):
    assert not may_call("127.0.0.1", origin, ())


def test_a_request_without_host_may_not():
    assert not may_call(None, None, ())


def test_names_that_were_told_may_call_and_a_wildcard_lets_addresses_in_but_no_names():
    assert may_call("kvcairn:7420", "http://kvcairn", ("kvcairn",))
    assert not may_call("other", None, ("kvcairn",))
    assert may_call("10.1.2.3:7420", None, ("0.0.0.0",))
    assert not may_call("evil.example", None, ("0.0.0.0",))


def test_is_loopback_knows_names_and_addresses():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "::1", "[::1]", "127.255.0.1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "example.org", "10.0.0.1", ""]))


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}])
def test_the_service_refuses_what_a_browser_could_send(open_service, headers):
    with open_service.http() as http:
        for path in ("/v1/service", "/v1/stats", "/metrics", "/healthz"):
            answer = http.get(path, headers=headers)
            assert answer.status_code == 403
            assert "--open-to" in answer.json()["detail"]


def test_everybody_is_the_default_tenant_and_the_admin(open_service):
    with open_service.http(token=ANY) as http:
        assert http.get("/v1/stats").json()["tenant"] == "default"
        assert http.get("/v1/tenants").status_code == 200
        assert http.get("/v1/service").json()["open"] is True


def test_the_unix_socket_is_private_and_takes_any_host(open_service):
    path = Path(open_service.uds_url.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://whatever.example") as http:
        assert http.get("/v1/stats", headers={"origin": "https://evil.example"}).status_code == 200


def test_told_by_name_it_does_and_answers_to_the_names_it_was_told(tmp_path):
    with running_service(
        tmp_path / "data", "--host", "0.0.0.0", "--open-to", "0.0.0.0", "--open-to", "kvcairn"
    ) as service:
        port = service.url.rsplit(":", 1)[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            codes = {host: http.get("/v1/service", headers={"host": host}).status_code
                     for host in ("kvcairn:7420", "10.9.8.7", "localhost", "evil.example")}  # fmt: skip
        assert codes == {"kvcairn:7420": 200, "10.9.8.7": 200, "localhost": 200, "evil.example": 403}


def test_a_closed_service_binds_anything_and_ignores_host(closed_service):
    assert "http://0.0.0.0:" in closed_service.log()
    with closed_service.http(token=ADMIN) as http:
        assert http.get("/v1/service", headers={"host": "any.example"}).status_code == 200


def test_the_unix_socket_alone_is_enough_and_a_dead_one_is_replaced(tmp_path):
    flags = ("--uds", str(tmp_path / "s"), "--host", "none")
    with running_service(tmp_path / "data", *flags) as service:
        assert service.url == ""
        with service.http() as http:
            assert http.get("/readyz").json() == {"status": "ready"}
        second = start_service(tmp_path / "other", *flags)
        assert second.wait() == 2
        assert "another process listens" in second.log()
        service.kill()
    assert (tmp_path / "s").exists()
    with running_service(tmp_path / "data", *flags) as service, service.http() as http:
        assert http.get("/readyz").status_code == 200
    assert not (tmp_path / "s").exists()


def test_a_file_in_the_place_of_a_socket_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SettingsError, match="no socket"):
        bind_unix(tmp_path / "file", mode=0o600)
    assert (tmp_path / "file").read_text() == "precious"
