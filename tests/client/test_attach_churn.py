"""A store that evicts and writes all the time under attached readers: a loaded record is always the right one."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.records import Outgoing
from kvcairn_protocol.layout import Kind
from serving import ServiceProcess, running_service

LAYOUT = samples.layout(row_bytes=64 << 10)
RECORDS = [samples.outgoing(LAYOUT, Kind.HISTORY, index) for index in range(0, 400, 2)]
"""200 records of 128 KiB that do not compress, of which the capacity holds about a quarter."""

STORES = 60


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServiceProcess]:
    with running_service(tmp_path / "data", "--capacity", "8MiB") as running:
        yield running


def write(url: str) -> None:
    """Store records at random, so that others are evicted and their pages are used again."""
    chosen = random.Random(1)
    with Client(url) as client:
        for _ in range(STORES):
            client.store(LAYOUT, chosen.sample(RECORDS, 8), codec="raw")


def read(client: Client, chosen: random.Random) -> tuple[int, int]:
    """One fetch of some records at random; how many came from the directory, and whether any came by the network."""
    some: list[Outgoing] = chosen.sample(RECORDS, chosen.choice([1, 3, 40, 100]))
    wishes, buffers = samples.wanted(LAYOUT, some)
    result = client.fetch(LAYOUT, wishes)
    for record, buffer, is_loaded in zip(some, buffers, result.loaded, strict=True):
        assert not is_loaded or bytes(buffer) == record.payload
    assert result.fault is None
    return result.bytes_mapped, result.bytes_received


def test_every_record_that_is_loaded_under_churn_is_the_one_that_was_asked_for(
    tmp_path: Path, process: ServiceProcess
) -> None:
    writer = threading.Thread(target=write, args=(process.url,))
    chosen, moved = random.Random(2), []
    with Client(process.url, attach=tmp_path / "data") as client:
        writer.start()
        while writer.is_alive():
            moved.append(read(client, chosen))
        evicted = sum(kind.evicted_records for kind in client.stats().kinds)
    mapped, received = map(sum, zip(*moved, strict=True))
    assert evicted > STORES, "records went all the time"
    assert mapped > 20 * LAYOUT.payload_bytes(Kind.HISTORY), "while they were read in place"
    assert received <= mapped // 10, "and hardly one was not as it must be"
