"""A fetch that is shared out over connections: the same records, one after the other or at once."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import client_samples as samples
from kvcairn_client import fetching
from kvcairn_client.client import Client
from kvcairn_client.errors import ServiceUnreachable
from kvcairn_client.faults import cut
from kvcairn_client.fetching import SHARE_BYTES, shares
from kvcairn_client.records import Wanted
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind

LAYOUT = samples.layout(row_bytes=4096)
RECORDS = samples.prompt(LAYOUT, 8, states=[3, 7])
FETCH = "/v1/records:fetch"


@pytest.fixture
def client(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that shares out a fetch of this few bytes already."""
    monkeypatch.setattr(fetching, "SHARE_BYTES", LAYOUT.payload_bytes(Kind.HISTORY))
    with Client(service.url, connections=2) as made:
        made.store(LAYOUT, RECORDS, codec="raw")
        yield made


def wish(index: int, size_bytes: int) -> Wanted:
    return Wanted(Kind.HISTORY, samples.key(index), None, memoryview(bytes(size_bytes)))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 5000))
def test_shares_are_neighbours_in_order_and_about_equal(sizes: list[int], at_most: int, share_bytes: int) -> None:
    wanted = [wish(index, size) for index, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "SHARE_BYTES", share_bytes)
        parts = shares(wanted, at_most=at_most)
    assert [item.key for part in parts for item in part] == [item.key for item in wanted]
    count = max(1, min(at_most, sum(sizes) // share_bytes))
    assert 1 <= len(parts) <= count
    assert all(0 < sum(len(item.target) for item in part) <= sum(sizes) / count + max(sizes) for part in parts)


def test_equal_records_make_equal_shares() -> None:
    wanted = [wish(index, SHARE_BYTES // 4) for index in range(16)]
    assert [len(part) for part in shares(wanted, at_most=2)] == [8, 8]
    assert [len(part) for part in shares(wanted, at_most=4)] == [4, 4, 4, 4]


def test_what_two_connections_bring_is_what_one_brings(service: FakeService, client: Client) -> None:
    service.seen.clear()
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert result.fault is None
    assert result.loaded == [True] * len(RECORDS)
    assert [bytes(buffer) for buffer in buffers] == [record.payload for record in RECORDS]
    assert service.seen == [f"POST {FETCH}"] * 2


def test_a_share_that_breaks_off_costs_its_own_rest_alone(service: FakeService, client: Client) -> None:
    one_record = LAYOUT.payload_bytes(Kind.HISTORY)
    service.faults[FETCH] = cut(after_bytes=one_record + one_record // 2 + 1024)
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert isinstance(result.fault, ServiceUnreachable)
    middle = result.loaded.index(True, 1)
    assert result.loaded == [index in (0, middle) for index in range(len(RECORDS))]
    for index in (0, middle):
        assert bytes(buffers[index]) == RECORDS[index].payload


def test_where_no_share_brings_anything_the_fault_is_raised(service: FakeService, client: Client) -> None:
    service.faults[FETCH] = cut(after_bytes=0)
    with pytest.raises(ServiceUnreachable):
        client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])


def test_bad_records_of_every_share_are_reported(service: FakeService, client: Client) -> None:
    spoiled = {RECORDS[0].key, RECORDS[6].key}
    for name, kept in list(service.shelf.records.items()):
        if name[1] is Kind.HISTORY and name[2] in spoiled:
            service.shelf.records[name] = kept[:-1] + bytes([kept[-1] ^ 1])
    service.seen.clear()
    result = client.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])
    assert [index for index, loaded in enumerate(result.loaded) if not loaded] == [0, 6]
    assert service.seen.count("POST /v1/records:report") == 2


@pytest.mark.parametrize("connections", [0, 5])
def test_a_number_of_connections_that_makes_no_sense_is_refused(connections: int) -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        Client(connections=connections)
