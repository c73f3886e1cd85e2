"""TLS, Unix sockets and IPv6 names: the same verbs, the same bounds."""

import socket
import ssl
import time
from pathlib import Path

import pytest
import trustme

import client_samples as samples
from kvcairn_client.address import parse_address
from kvcairn_client.client import Client
from kvcairn_client.connect import Endpoint, resolve
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BudgetExceeded, Refused, ServiceUnreachable
from kvcairn_client.faults import cut, drip, problem
from kvcairn_client.testing import FakeService

LAYOUT = samples.layout(row_bytes=64 << 10)
RECORDS = samples.prompt(LAYOUT, 4, states=[3])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def check_round_trip(client: Client) -> None:
    for _ in range(3):
        client.store(LAYOUT, RECORDS, codec="raw")
        wishes, buffers = samples.wanted(LAYOUT, RECORDS)
        assert client.fetch(LAYOUT, wishes).loaded == [True] * 5
        assert [bytes(buffer) for buffer in buffers] == [record.payload for record in RECORDS]
        assert client.lookup(LAYOUT, samples.keys(4)).state_tokens == (32,)


def test_over_tls(authority: trustme.CA) -> None:
    with FakeService(tls=server_context(authority, "127.0.0.1")) as service:
        with Client(service.url, budgets=samples.QUICK, tls=client_context(authority)) as client:
            check_round_trip(client)
        assert service.accepted == 2


def test_a_certificate_nobody_vouches_for_is_not_spoken_to(authority: trustme.CA) -> None:
    with FakeService(tls=server_context(authority, "127.0.0.1")) as service:
        client = Client(service.url, budgets=samples.QUICK)
        with client, pytest.raises(ServiceUnreachable, match="certificate"):
            client.stats()
        assert service.seen == []


def test_a_certificate_for_another_name_is_not_spoken_to(authority: trustme.CA) -> None:
    with FakeService(tls=server_context(authority, "other.example")) as service:
        client = Client(service.url, budgets=samples.QUICK, tls=client_context(authority))
        with client, pytest.raises(ServiceUnreachable, match="not valid for"):
            client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])


def test_an_early_answer_over_tls_is_read(authority: trustme.CA) -> None:
    with FakeService(tls=server_context(authority, "127.0.0.1")) as service:
        wide = samples.layout(row_bytes=8 << 20)
        with Client(service.url, budgets=samples.QUICK, tls=client_context(authority)) as client:
            client.register(wide)
            service.early["/v1/records:store"] = problem(413)
            with pytest.raises(Refused):
                client.store(wide, samples.prompt(wide, 1), codec="raw")


def test_faults_over_tls_are_bounded_too(authority: trustme.CA) -> None:
    context = client_context(authority)
    with (
        FakeService(tls=server_context(authority, "127.0.0.1")) as service,
        Client(service.url, budgets=samples.QUICK, tls=context) as client,
    ):
        client.store(LAYOUT, RECORDS)
        service.faults["/v1/records:fetch"] = drip(piece_bytes=100, pause_seconds=0.05)
        assert isinstance(client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).fault, BudgetExceeded)
        service.faults["/v1/records:fetch"] = cut(9000)
        assert isinstance(client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).fault, ServiceUnreachable)


def test_a_plain_service_is_not_taken_for_a_tls_one(service: FakeService) -> None:
    client = Client(service.url.replace("http", "https"), budgets=samples.QUICK)
    with client, pytest.raises((ServiceUnreachable, BudgetExceeded)):
        client.stats()


def test_over_a_unix_socket(tmp_path: Path) -> None:
    with FakeService(uds=tmp_path / "s") as service:
        assert service.url == f"unix:{tmp_path}/s"
        with Client(service.url, budgets=samples.QUICK) as client:
            check_round_trip(client)


def test_a_unix_socket_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path}/nobody") as client, pytest.raises(ServiceUnreachable, match="nobody"):
        client.stats()


def test_a_name_is_resolved_and_each_of_its_addresses_tried(service: FakeService) -> None:
    with Client(f"http://localhost:{service.port}", budgets=samples.QUICK) as client:
        check_round_trip(client)
    found = {candidate.sockaddr[0] for candidate in resolve("localhost", 1, Deadline(10, budget="b"))}
    assert "127.0.0.1" in found


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    client = Client("http://no-such-name.invalid", budgets=samples.QUICK)
    with client, pytest.raises((ServiceUnreachable, BudgetExceeded)):
        client.stats()


def test_a_port_that_accepts_nobody_costs_connect_seconds() -> None:
    """A listening socket whose queue is full: the kernel drops what comes, as a vanished host does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [_started(listener.getsockname()) for _ in range(4)]
        address = parse_address(f"http://127.0.0.1:{listener.getsockname()[1]}")
        endpoint = Endpoint(address=address, connect_seconds=0.2)
        started = time.monotonic()
        with pytest.raises(BudgetExceeded, match="connect_seconds"):
            endpoint.connect(Deadline(60, budget="fetch_seconds"))
        assert time.monotonic() - started < 6
        for filler in fillers:
            filler.close()


def _started(where: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(0)
    sock.connect_ex(where)
    return sock
