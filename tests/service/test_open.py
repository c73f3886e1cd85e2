"""An open service: loopback and Unix socket, and nobody that a browser lets in."""

# ruff: noqa: S104 - what must not be bound has to be named

import stat
from pathlib import Path

import httpx
import pytest

from kvcairn_service.hosts import is_loopback, may_call
from serving import running_service, start_service

ANY = "any token at all"
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


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_service_does_not_bind_other_addresses(tmp_path, host):
    service = start_service(tmp_path / "data", "--host", host)
    assert service.wait() == 2
    assert "--open-to" in service.log()
    assert len(service.log().splitlines()) == 1


def test_told_by_name_it_does_and_answers_to_the_names_it_was_told(tmp_path):
    with running_service(
        tmp_path / "data", "--host", "0.0.0.0", "--open-to", "0.0.0.0", "--open-to", "kvcairn"
    ) as service:
        port = service.url.rsplit(":", 1)[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            codes = {host: http.get("/v1/service", headers={"host": host}).status_code
                     for host in ("kvcairn:7420", "10.9.8.7", "localhost", "evil.example")}  # fmt: skip
        assert codes == {"kvcairn:7420": 200, "10.9.8.7": 200, "localhost": 200, "evil.example": 403}


def test_a_closed_service_binds_anything_and_ignores_host(tmp_path):
    with running_service(tmp_path / "data", "--host", "0.0.0.0", env={"KVCAIRN_ADMIN_TOKEN": "secret"}) as service:
        port = service.url.rsplit(":", 1)[1]
        headers = {"host": "any.example", "authorization": "Bearer secret"}
        assert httpx.get(f"http://127.0.0.1:{port}/v1/service", headers=headers, trust_env=False).status_code == 200


def test_the_unix_socket_alone(tmp_path):
    with running_service(tmp_path / "data", "--uds", str(tmp_path / "s"), "--host", "none") as service:
        assert service.url == ""
        with service.http() as http:
            assert http.get("/readyz").json() == {"status": "ready"}
        second = start_service(tmp_path / "other", "--uds", str(tmp_path / "s"), "--host", "none")
        assert second.wait() == 2
        assert "another process listens" in second.log()
    assert not (tmp_path / "s").exists()


def test_a_dead_socket_is_replaced_and_a_file_is_not(tmp_path):
    with running_service(tmp_path / "data", "--uds", str(tmp_path / "s"), "--host", "none") as service:
        service.kill()
    assert (tmp_path / "s").exists()
    with running_service(tmp_path / "data", "--uds", str(tmp_path / "s"), "--host", "none"):
        pass
    (tmp_path / "file").write_text("precious")
    refused = start_service(tmp_path / "data", "--uds", str(tmp_path / "file"), "--host", "none")
    assert refused.wait() == 2
    assert (tmp_path / "file").read_text() == "precious"
