"""The client over TLS and mutual TLS, with a real service: whom it trusts, what it shows, and how a fault reads."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import client_samples as samples
from certificates import Files, place, write, write_ca
from kvcairn_client.client import Client
from kvcairn_client.errors import Refused, ServiceUnreachable
from kvcairn_client.failopen import FailOpen
from kvcairn_client.tls import ContextOfFiles, TlsFiles
from serving import running_service

NAME = "127.0.0.1"
LAYOUT = samples.layout(row_bytes=2 << 20)
RECORDS = samples.prompt(LAYOUT, 6, states=[5])


class Fleet:
    """A service with mutual TLS, and the files of those who call it."""

    def __init__(self, directory: Path) -> None:
        self.authority, theirs = trustme.CA(), trustme.CA()
        self.ca = write_ca(self.authority, directory / "ca.crt")
        self.server = write(self.authority, directory, NAME)
        self.engine = write(self.authority, directory, "engine")
        self.stranger = write(theirs, directory, "stranger")
        self.expired = write(self.authority, directory, "expired", valid_days=-10)
        self.url = ""

    def client(self, shown: Files | None, *, connections: int = 1) -> Client:
        cert, key = shown or (None, None)
        return Client(self.url, tls_ca=self.ca, tls_cert=cert, tls_key=key, connections=connections)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    files = {"--tls-cert": made.server.cert, "--tls-key": made.server.key, "--tls-client-ca": made.ca}
    flags = [str(word) for pair in files.items() for word in pair]
    with running_service(tmp_path_factory.mktemp("service") / "data", *flags) as service:
        made.url = service.url
        yield made


@pytest.mark.parametrize("connections", [1, 2])
def test_large_records_are_stored_and_fetched_byte_for_byte(fleet: Fleet, connections: int) -> None:
    with fleet.client(fleet.engine, connections=connections) as client:
        for _ in range(2):
            answer = client.store(LAYOUT, RECORDS)
            assert answer.stored + answer.present == len(RECORDS)
        wishes, buffers = samples.wanted(LAYOUT, RECORDS)
        assert client.fetch(LAYOUT, wishes).loaded == [True] * len(RECORDS)
        assert [bytes(buffer) for buffer in buffers] == [record.payload for record in RECORDS]
        assert client.lookup(LAYOUT, samples.keys(6)).state_tokens == (48,)


@pytest.mark.parametrize(
    ("shown", "said"),
    [(None, "give tls_cert and tls_key"), ("stranger", "does not trust the CA"), ("expired", "no longer, or not yet")],
)
def test_a_client_that_the_service_does_not_let_in_is_told_why(fleet: Fleet, shown: str | None, said: str) -> None:
    with fleet.client(getattr(fleet, shown) if shown else None) as client:
        with pytest.raises(ServiceUnreachable, match=said):
            client.stats()
        with pytest.raises(ServiceUnreachable, match=said):
            client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])


def test_a_service_under_another_name_is_not_spoken_to(fleet: Fleet) -> None:
    url = fleet.url.replace(NAME, "localhost")
    with Client(url, tls_ca=fleet.ca, tls_cert=fleet.engine.cert, tls_key=fleet.engine.key) as client:
        for ask in (client.stats, lambda: client.store(LAYOUT, RECORDS)):
            with pytest.raises(ServiceUnreachable, match="not valid for 'localhost'"):
                ask()


def test_a_service_that_nobody_vouches_for_is_not_spoken_to(fleet: Fleet) -> None:
    with Client(fleet.url) as client, pytest.raises(ServiceUnreachable, match=r"not trusted.*tls_ca"):
        client.stats()


def test_plain_http_to_a_tls_port_is_an_error_that_says_so(fleet: Fleet) -> None:
    with Client(fleet.url.replace("https", "http")) as client:
        with pytest.raises(Refused, match="https://"):
            client.stats()
        with pytest.raises(Refused, match="https://"):
            client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])


@pytest.mark.parametrize("shown", [None, "stranger"])
def test_an_engine_goes_on_and_its_log_names_the_cause_once(
    fleet: Fleet, shown: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with FailOpen(fleet.client(getattr(fleet, shown) if shown else None)) as guarded:
        for _ in range(5):
            assert guarded.lookup(LAYOUT, samples.keys(6)).hit_tokens == 0
            assert guarded.store(LAYOUT, RECORDS).stored == 0
            assert not any(guarded.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0]).loaded)
    (line,) = caplog.messages
    assert "tls_cert" in line


def test_a_certificate_that_is_exchanged_is_shown_by_the_next_connection(fleet: Fleet, tmp_path: Path) -> None:
    shown = Files(tmp_path / "crt", tmp_path / "key")
    shutil.copy(fleet.expired.cert, shown.cert)
    shutil.copy(fleet.expired.key, shown.key)
    with fleet.client(shown) as client:
        with pytest.raises(ServiceUnreachable):
            client.stats()
        place(fleet.authority.issue_cert("engine"), *shown)
        assert client.stats().tenant == "default"


def test_a_half_exchanged_pair_leaves_the_one_from_before(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    contexts = ContextOfFiles(TlsFiles(ca=fleet.ca, cert=fleet.engine.cert, key=fleet.engine.key))
    before, whole = contexts(), fleet.engine.key.read_bytes()
    fleet.engine.key.write_bytes(fleet.stranger.key.read_bytes())
    assert contexts() is before
    assert "no pair" in caplog.text
    fleet.engine.key.write_bytes(whole)
    assert contexts() is not before


def test_parameters_that_contradict_each_other_are_named(fleet: Fleet, tmp_path: Path) -> None:
    context = ContextOfFiles(TlsFiles())()
    for url, parameters, said in (
        ("http://h", {"tls_ca": fleet.ca}, "https://HOST:PORT alone"),
        ("unix:/s", {"tls_cert": fleet.engine.cert}, "https://HOST:PORT alone"),
        ("https://h", {"tls_key": fleet.engine.key}, "tls_cert is not"),
        ("https://h", {"tls": context, "tls_ca": fleet.ca}, "one or the other"),
        ("https://h", {"tls_ca": tmp_path / "nowhere"}, "tls_ca: cannot read .*nowhere"),
        ("https://h", {"tls_ca": fleet.engine.key}, "tls_ca: .* no PEM certificates"),
        ("https://h", {"tls_cert": fleet.ca, "tls_key": fleet.engine.key}, "no pair"),
    ):
        with pytest.raises(ValueError, match=said):
            Client(url, **parameters)  # type: ignore[arg-type]  # each is one or the other
