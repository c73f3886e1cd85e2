"""The client against a real service process: real LMDB, real HTTP."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import client_samples as samples
from kvcairn_client.background import StoreQueue
from kvcairn_client.client import Client
from kvcairn_client.errors import Refused, Unauthorized
from kvcairn_client.failopen import FailOpen
from kvcairn_client.records import Ref
from kvcairn_protocol.layout import Kind
from serving import ServiceProcess, running_service

ADMIN = "admin-token-of-a-test"
RECORDS_LAYOUT = samples.layout(row_bytes=32 << 10)
RECORDS = samples.prompt(RECORDS_LAYOUT, 6, states=[2, 5])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    directory = tmp_path_factory.mktemp("real")
    with running_service(directory / "data", "--uds", str(directory / "socket")) as running:
        yield running


@pytest.fixture(params=["tcp", "unix"])
def real(process: ServiceProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(process.url if request.param == "tcp" else process.uds_url) as client:
        yield client


def fetched(client: Client, layout: object = RECORDS_LAYOUT) -> tuple[list[bool], list[bytes]]:
    wishes, buffers = samples.wanted(layout, RECORDS)  # type: ignore[arg-type]
    return client.fetch(layout, wishes).loaded, [bytes(buffer) for buffer in buffers]  # type: ignore[arg-type]


def test_store_lookup_fetch_touch_exists_stats(real: Client) -> None:
    answer = real.store(RECORDS_LAYOUT, RECORDS)
    assert answer.stored + answer.present == 8
    assert answer.rejected == []
    found = real.lookup(RECORDS_LAYOUT, samples.keys(9))
    assert (found.hit_tokens, found.state_tokens, found.strategy.kind) == (48, (48, 24), "anchored")
    assert fetched(real) == ([True] * 8, [record.payload for record in RECORDS])
    refs = [Ref(record.kind, record.key) for record in RECORDS]
    assert real.exists(RECORDS_LAYOUT, [*refs, Ref(Kind.WINDOW, samples.key(0))]) == [True] * 8 + [False]
    assert real.touch(RECORDS_LAYOUT, block_keys=samples.keys(6)) == 6
    assert real.touch(RECORDS_LAYOUT, refs=refs) == 8
    assert real.report(RECORDS_LAYOUT, refs[0]) is False, "the record is in good order"
    assert real.stats().records >= 8
    assert real.service().api == 1
    assert real.fetch_bytes(RECORDS_LAYOUT, Kind.STATE, samples.key(2)) == RECORDS[6].payload


def test_misses_and_hits_in_one_fetch(real: Client) -> None:
    real.store(RECORDS_LAYOUT, RECORDS)
    mixed = [RECORDS[0], samples.outgoing(RECORDS_LAYOUT, Kind.WINDOW, 3), RECORDS[7]]
    wishes, buffers = samples.wanted(RECORDS_LAYOUT, mixed)
    assert real.fetch(RECORDS_LAYOUT, wishes).loaded == [True, False, True]
    assert bytes(buffers[2]) == RECORDS[7].payload


def test_a_layout_whose_records_are_too_large_is_refused_in_the_service_s_words(real: Client) -> None:
    with pytest.raises(Refused) as caught:
        real.register(samples.layout("org/huge", row_bytes=1 << 30))
    assert caught.value.status == 422
    assert caught.value.problem is not None


def test_the_queue_stores_in_the_background(process: ServiceProcess) -> None:
    layout = samples.layout("org/queue")
    with Client(process.url) as client, StoreQueue(FailOpen(client)) as queue:
        queue.submit(layout, samples.prompt(layout, 5, states=[4]))
        assert queue.flush(30)
        assert client.lookup(layout, samples.keys(5)).state_tokens == (40,)
        assert queue.counts()[:4] == (6, 0, 0, 0)


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_service(data) as first:
        client = Client(first.url)
        client.store(RECORDS_LAYOUT, RECORDS)
        first.kill()
    port = first.url.rsplit(":", 1)[1]
    guarded = FailOpen(client)
    assert guarded.lookup(RECORDS_LAYOUT, samples.keys(6)).answered is False
    with running_service(data, "--port", port), client:
        assert fetched(client) == ([True] * 8, [record.payload for record in RECORDS])
        assert client.lookup(RECORDS_LAYOUT, samples.keys(6)).state_tokens == (48, 24)


def test_an_empty_service_at_the_same_address_is_told_the_layout_again(tmp_path: Path) -> None:
    with running_service(tmp_path / "one") as first:
        client = Client(first.url)
        client.store(RECORDS_LAYOUT, RECORDS)
    port = first.url.rsplit(":", 1)[1]
    with running_service(tmp_path / "two", "--port", port), client:
        assert fetched(client)[0] == [False] * 8
        assert client.store(RECORDS_LAYOUT, RECORDS).stored == 8
        assert fetched(client)[0] == [True] * 8


def test_tenants_see_their_own_records_only(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as closed:
        tokens = [_token(closed, name) for name in ("red", "blue")]
        with Client(closed.url, token=tokens[0]) as red, Client(closed.url, token=tokens[1]) as blue:
            red.store(RECORDS_LAYOUT, RECORDS)
            assert red.stats().tenant == "red"
            assert blue.lookup(RECORDS_LAYOUT, samples.keys(6)).hit_tokens == 0
            assert fetched(blue)[0] == [False] * 8
            assert fetched(red)[0] == [True] * 8
        with Client(closed.url) as nobody, pytest.raises(Unauthorized):
            nobody.fetch(RECORDS_LAYOUT, samples.wanted(RECORDS_LAYOUT, RECORDS)[0])


def _token(service: ServiceProcess, tenant: str) -> str:
    with service.http(token=ADMIN) as admin:
        assert admin.put(f"/v1/tenants/{tenant}", json={}).status_code in {200, 201}
        answer: httpx.Response = admin.post(f"/v1/tenants/{tenant}/tokens")
        return str(answer.json()["token"])


def test_a_fetch_and_a_raw_store_hold_no_copy_of_what_they_move(process: ServiceProcess) -> None:
    layout = samples.layout("org/wide", row_bytes=1 << 20)
    records = [samples.outgoing(layout, Kind.HISTORY, index) for index in range(0, 24, 2)]
    wishes, buffers = samples.wanted(layout, records)
    moved_bytes = sum(map(len, buffers))
    with Client(process.url) as client:
        client.register(layout)
        tracemalloc.start()
        try:
            client.store(layout, records, codec="raw")
            assert client.fetch(layout, wishes).loaded == [True] * 12
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [bytes(buffer) for buffer in buffers] == [record.payload for record in records]
    assert peak_bytes < 1 << 20 < moved_bytes // 16
