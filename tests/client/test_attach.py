"""Fetching from the data directory of a real service, past its socket: the same answers, no failure of its own."""

import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.errors import ClientError, ServiceUnreachable, Unauthorized
from kvcairn_client.records import FetchResult, Outgoing
from kvcairn_protocol.layout import Kind
from service_caller import Caller
from serving import ServiceProcess, running_service

ADMIN = "admin-token-of-a-test"
LAYOUT = samples.layout(row_bytes=32 << 10)
RECORDS = samples.prompt(LAYOUT, 40, states=[2, 5])
"""Every second one compresses; together enough for two threads."""

NOT_STORED = [samples.outgoing(LAYOUT, Kind.WINDOW, 3), samples.outgoing(LAYOUT, Kind.HISTORY, 41)]
WAIT_SECONDS = 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attach") / "data"


@pytest.fixture(scope="module")
def process(data: Path) -> Iterator[ServiceProcess]:
    with running_service(data, "--uds", f"{data}.socket") as running:
        with Client(running.url) as client:
            client.store(LAYOUT, RECORDS, codec="shuffle-zstd")
        yield running


def fetched(client: Client, records: list[Outgoing]) -> FetchResult:
    """Fetch, and compare every loaded target with what was stored, byte for byte."""
    wishes, buffers = samples.wanted(LAYOUT, records)
    result = client.fetch(LAYOUT, wishes)
    for record, buffer, is_loaded in zip(records, buffers, result.loaded, strict=True):
        assert not is_loaded or bytes(buffer) == record.payload
    return result


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sent_bytes(process: ServiceProcess) -> float:
    """What the service has sent of records."""
    with process.http() as http:
        return Caller(http).metric("kvcairn_sent_bytes_total")


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_what_is_stored_is_loaded_from_the_directory_and_the_rest_is_missing(
    process: ServiceProcess, data: Path, way: str
) -> None:
    url = process.url if way == "tcp" else process.uds_url
    asked = [RECORDS[0], NOT_STORED[0], *RECORDS[1:], NOT_STORED[1]]
    before = sent_bytes(process)
    with Client(url, attach=data) as attached, Client(url) as plain:
        found, right = fetched(attached, asked), fetched(plain, asked)
        assert found.loaded == right.loaded == [True, False, *[True] * 41, False]
        assert (found.bytes_received, found.fault) == (0, None)
        assert found.bytes_mapped < 0.7 * sum(len(record.payload) for record in RECORDS), "half of them are compressed"
        assert found.bytes_mapped == right.bytes_received - 2 * 128, "a missing record travels as a header"
        assert fetched(attached, []).loaded == []
        assert attached.fetch_bytes(LAYOUT, Kind.STATE, samples.key(2)) == RECORDS[40].payload
    assert sent_bytes(process) == before + right.bytes_received


def test_small_records_too(process: ServiceProcess, data: Path) -> None:
    small = samples.layout("org/small")
    records = samples.prompt(small, 50, states=range(50))
    with Client(process.url, attach=data) as client:
        client.store(small, records)
        wishes, buffers = samples.wanted(small, records)
        result = client.fetch(small, wishes)
    assert all(result.loaded)
    assert result.bytes_received == 0
    assert [bytes(buffer) for buffer in buffers] == [record.payload for record in records]


def test_another_position_than_asked_for_is_a_miss(process: ServiceProcess, data: Path) -> None:
    with Client(process.url, attach=data) as client:
        wishes, _ = samples.wanted(LAYOUT, RECORDS[:2])
        result = client.fetch(LAYOUT, [wishes[0], wishes[1]._replace(position=8)])
    assert result.loaded == [True, False]


def test_what_is_read_in_place_counts_as_used(process: ServiceProcess, data: Path) -> None:
    layout = samples.layout("org/used")

    def uses() -> int:
        with Client(process.url) as client:
            return sum(kind.uses for kind in client.stats().kinds if kind.layout == layout.fingerprint.hex())

    with Client(process.url, attach=data) as client:
        client.store(layout, samples.prompt(layout, 4))
        assert uses() == 0
        for _ in range(3):
            result = client.fetch(layout, samples.wanted(layout, samples.prompt(layout, 4))[0])
            assert result.bytes_received == 0
        eventually(lambda: uses() >= 4)
        client.fetch(layout, samples.wanted(layout, samples.prompt(layout, 1))[0])
    assert uses() >= 5, "closing reports what waits"


def test_bits_that_flipped_in_the_file_are_never_loaded_and_are_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_service(data) as process, Client(process.url, attach=data) as client:
        client.store(LAYOUT, RECORDS, codec="raw")
        assert all(fetched(client, RECORDS).loaded)
        flip(data / "data.mdb", RECORDS[4].payload[1000:1064])
        result = fetched(client, RECORDS)
        assert [index for index, is_loaded in enumerate(result.loaded) if not is_loaded] == [4]
        assert client.stats().records == 41, "the service has taken it out"
        assert fetched(client, RECORDS[4:5]) == FetchResult(loaded=[False])
        client.store(LAYOUT, RECORDS[4:5])
        assert fetched(client, RECORDS).loaded == [True] * 42


def flip(path: Path, found: bytes) -> None:
    """Flip a bit where these bytes are, as a disk would: in the file that everybody has mapped."""
    content = path.read_bytes()
    assert content.count(found) == 1
    with path.open("r+b") as file:
        file.seek(content.index(found))
        file.write(bytes([found[0] ^ 0x10]))


def test_a_service_that_was_killed_and_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_service(data) as first:
        client = Client(first.url, attach=data)
        client.store(LAYOUT, RECORDS)
        assert fetched(client, RECORDS).bytes_received == 0
        first.kill()
    # Vouched for a moment ago: served; or not any more: an error as without attach. Never anything else.
    for _ in range(3):
        with contextlib.suppress(ServiceUnreachable):
            assert all(fetched(client, RECORDS).loaded)
    with running_service(data, "--port", first.url.rsplit(":", 1)[1]), client:
        assert all(fetched(client, RECORDS).loaded)
        eventually(lambda: fetched(client, RECORDS).bytes_received == 0)


def test_a_directory_made_anew_is_read_anew_and_its_old_records_are_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_service(data) as first:
        client = Client(first.url, attach=data)
        client.store(LAYOUT, RECORDS)
        assert fetched(client, RECORDS).bytes_received == 0
    shutil.rmtree(data)
    with running_service(data, "--port", first.url.rsplit(":", 1)[1]), client:
        assert fetched(client, RECORDS).loaded == [False] * 42
        client.store(LAYOUT, RECORDS[:3])
        assert fetched(client, RECORDS).loaded == [True] * 3 + [False] * 39
        eventually(lambda: fetched(client, RECORDS[:3]).bytes_received == 0)


@pytest.mark.parametrize("directory", ["gone", "empty", "other"])
def test_a_directory_that_is_not_the_service_s_costs_nothing_but_speed(
    process: ServiceProcess, tmp_path: Path, directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    if directory == "empty":
        (tmp_path / "empty").mkdir()
    if directory == "other":
        with running_service(tmp_path / "other") as other, Client(other.url) as client:
            client.store(LAYOUT, RECORDS[:1])
    with (
        caplog.at_level(logging.INFO, "kvcairn_client"),
        Client(process.url, attach=tmp_path / directory, attach_shared=True) as client,
    ):
        for _ in range(3):
            result = fetched(client, [*RECORDS, *NOT_STORED])
            assert result.loaded == [True] * 42 + [False] * 2
            assert result.bytes_mapped == 0
    assert len([line for line in caplog.messages if "over the network instead of from" in line]) == 1


def token_of(service: ServiceProcess, tenant: str) -> str:
    with service.http(token=ADMIN) as admin:
        admin.put(f"/v1/tenants/{tenant}", json={}).raise_for_status()
        return str(admin.post(f"/v1/tenants/{tenant}/tokens").json()["token"])


def test_several_tenants_share_a_directory_only_where_that_is_forced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with running_service(data, env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as closed:
        red, blue = (token_of(closed, name) for name in ("red", "blue"))
        with (
            Client(closed.url, token=red, attach=data) as client,
            Client(closed.url, token=red, attach=data, attach_shared=True) as forced,
            Client(closed.url, token=blue, attach=data, attach_shared=True) as other,
        ):
            client.store(LAYOUT, RECORDS)
            assert fetched(client, RECORDS).bytes_received == 0, "a tenant without records has nothing to lose"
            other.store(LAYOUT, RECORDS[:2])
            result = fetched(client, RECORDS)
            assert all(result.loaded)
            assert result.bytes_mapped == 0
            assert "1 other tenant" in caplog.text
            assert fetched(forced, RECORDS).bytes_received == 0
            found = fetched(other, RECORDS)
            assert found.loaded == [True] * 2 + [False] * 40, "its own records, also in a directory that it could read"
            assert found.bytes_received == 0


def test_a_revoked_token_and_a_deleted_tenant_are_not_served_for_long(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_service(data, env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as closed:
        token = token_of(closed, "red")
        with Client(closed.url, token=token, attach=data) as client, closed.http(token=ADMIN) as admin:
            client.store(LAYOUT, RECORDS)
            assert fetched(client, RECORDS).bytes_received == 0
            admin.delete(f"/v1/tenants/red/tokens/{token.split('_')[1]}").raise_for_status()
            eventually(lambda: _is_refused(client))
            with pytest.raises(Unauthorized):
                fetched(client, RECORDS)


def _is_refused(client: Client) -> bool:
    try:
        fetched(client, RECORDS)
    except Unauthorized:
        return True
    return False


def test_a_directory_that_is_deleted_under_a_running_service_is_left_for_the_network(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_service(data) as process, Client(process.url, attach=data) as client:
        client.store(LAYOUT, RECORDS)
        assert fetched(client, RECORDS).bytes_received == 0
        shutil.rmtree(data)
        result = fetched(client, RECORDS)
        assert all(result.loaded)
        assert result.bytes_mapped == 0


def test_a_child_of_a_fork_neither_reads_nor_hurts_its_parent(process: ServiceProcess, data: Path) -> None:
    with Client(process.url, attach=data) as client:
        assert fetched(client, RECORDS).bytes_received == 0
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                client.close()
                with Client(process.url, attach=data) as own:
                    status = 0 if all(fetched(own, RECORDS).loaded) else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert fetched(client, RECORDS).bytes_received == 0


def test_without_lmdb_the_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent: Any = None
    monkeypatch.setitem(sys.modules, "kvcairn_client.attach", absent)
    monkeypatch.delitem(sys.modules, "kvcairn_client.attach")
    for name in [name for name in sys.modules if name.startswith(("kvcairn_storage", "lmdb"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lmdb", absent)
    with pytest.raises(ModuleNotFoundError, match=r"attach needs lmdb, .* pip install 'kvcairn\[attach\]'"):
        Client(attach=tmp_path)


def test_a_closed_client_reads_nothing(process: ServiceProcess, data: Path) -> None:
    client = Client(process.url, attach=data)
    assert fetched(client, RECORDS).bytes_received == 0
    client.close()
    client.close()
    with pytest.raises(ClientError, match="closed"):
        fetched(client, RECORDS)
