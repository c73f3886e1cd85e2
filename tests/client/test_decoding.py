"""Threads that decode: none without need, few buffers, and nobody writes once a fetch is over."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.decoding import BUFFERS, THREADS, Decoder
from kvcairn_client.faults import cut
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind

LAYOUT = samples.layout(row_bytes=1 << 16)
LONG_SECONDS = 20.0
"""What a buffer that is given back never takes: a test that waits for it in vain fails then, instead of hanging."""

RECORDS = [samples.outgoing(LAYOUT, Kind.HISTORY, index) for index in range(1, 24, 2)]


def decoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kvcairn-decode")]


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    made = Decoder()
    yield made
    made.finish()


def test_a_buffer_is_lent_again_only_when_its_work_is_done(decoder: Decoder) -> None:
    may_end, got = threading.Event(), threading.Event()
    payloads = [decoder.borrow(8) for _ in range(BUFFERS)]
    done = [decoder.start(may_end.wait, payload) for payload in payloads]

    def borrow_one_more() -> None:
        decoder.borrow(8)
        got.set()

    thread = threading.Thread(target=borrow_one_more, daemon=True)
    thread.start()
    assert not got.wait(0.05)
    assert len(decoding_threads()) == THREADS
    may_end.set()
    assert got.wait(LONG_SECONDS), "no buffer came back"
    thread.join()
    assert all(each.result() for each in done)


def test_work_that_fails_gives_its_buffer_back(decoder: Decoder) -> None:
    def fail() -> None:
        raise ValueError("made to fail")

    started: SimpleQueue[Future[None]] = SimpleQueue()

    def start_all() -> None:
        for _ in range(3 * BUFFERS):
            started.put(decoder.start(fail, decoder.borrow(8)))

    threading.Thread(target=start_all, daemon=True).start()
    for _ in range(3 * BUFFERS):
        with pytest.raises(ValueError, match="made to fail"):
            started.get(timeout=LONG_SECONDS).result()


def test_finishing_waits_for_all_that_was_started(decoder: Decoder) -> None:
    done: list[int] = []
    for index in range(BUFFERS):
        decoder.start(lambda index=index: done.append(index), decoder.borrow(8))  # type: ignore[misc]
    decoder.finish()
    assert sorted(done) == list(range(BUFFERS))
    assert decoding_threads() == []


@pytest.mark.parametrize("codec", ["zstd", "raw"])
def test_a_fetch_leaves_no_thread_behind_and_a_raw_one_starts_none(
    service: FakeService, client: Client, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    client.store(LAYOUT, RECORDS, codec=codec)  # type: ignore[arg-type]
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    monkeypatch.setattr(threading.Thread, "start", noted)
    assert all(client.fetch(LAYOUT, wishes).loaded)
    assert [bytes(buffer) for buffer in buffers] == [record.payload for record in RECORDS]
    assert any("decode" in name for name in started) == (codec == "zstd")
    assert decoding_threads() == []


def test_a_transfer_that_breaks_off_counts_what_was_decoded_and_touches_nothing_afterwards(
    service: FakeService, client: Client
) -> None:
    client.store(LAYOUT, RECORDS, codec="zstd")
    service.faults["/v1/records:fetch"] = cut(after_bytes=900)
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    result = client.fetch(LAYOUT, wishes)
    assert result.fault is not None
    assert decoding_threads() == []
    for loaded, buffer, record in zip(result.loaded, buffers, RECORDS, strict=True):
        assert bytes(buffer) == (record.payload if loaded else b"\xa5" * len(buffer))
    assert any(result.loaded)
    assert not all(result.loaded)
