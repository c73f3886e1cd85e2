"""Copying out of a map: what counts is the copy, and only as long as the pages cannot change."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import client_samples as samples
from kvcairn_client.attach_copy import READ_BYTES, READ_RECORDS, Copies, copy_verified, runs
from kvcairn_client.attach_lease import LEASE_SECONDS, Lease
from kvcairn_client.client import Client
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer, BudgetExceeded, ClientError
from kvcairn_client.records import Wanted
from kvcairn_protocol.codec import encode
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import ServiceInfo, ServiceLimits
from kvcairn_protocol.record import encode_record, missing_record
from kvcairn_storage.attached import AttachedReader
from kvcairn_storage.store import RecordKey
from serving import running_service

LAYOUT = samples.layout(row_bytes=64 << 10)
OLD = [samples.outgoing(LAYOUT, Kind.HISTORY, index) for index in range(0, 80, 2)]
NEW = [samples.outgoing(LAYOUT, Kind.HISTORY, index) for index in range(100, 300, 2)]
SMALL = samples.layout()


def test_records_are_right_although_their_pages_are_used_again_as_soon_as_they_can_be(tmp_path: Path) -> None:
    """The store evicts all that is asked for and writes other records, in each block and at once after it."""
    with running_service(tmp_path / "data", "--capacity", "8MiB") as process, Client(process.url) as client:
        client.store(LAYOUT, OLD, codec="raw")
        tenant = str(client.service().tenant_id)
        reader = AttachedReader(tmp_path / "data")

        @contextmanager
        def views(wanted: Sequence[Wanted]) -> Iterator[list[memoryview | None]]:
            keys = [RecordKey(tenant, LAYOUT.fingerprint, item.kind, item.key) for item in wanted]
            with reader.views(keys) as records:
                client.store(LAYOUT, NEW[:50], codec="raw")
                yield records
            client.store(LAYOUT, NEW[50:], codec="raw")
            client.store(LAYOUT, NEW[:50], codec="raw")

        wishes, buffers = samples.wanted(LAYOUT, OLD)
        copies = Copies(LAYOUT, wishes)
        with ThreadPoolExecutor(1) as helper:
            copies.run(views, helper, Deadline(60, budget="b"))
        reader.close()
    loaded = [answer for answer in copies.answers if answer]
    assert None not in copies.answers, "what was seen in a block was right in it"
    assert len(loaded) >= READ_RECORDS, "and some were still there"
    for record, buffer, answer in zip(OLD, buffers, copies.answers, strict=True):
        assert not answer or bytes(buffer) == record.payload


def test_a_deadline_ends_the_copying() -> None:
    wishes, buffers = samples.wanted(LAYOUT, OLD)
    seconds = iter([0.0, 0.5, 2.0, 2.0, 2.0])
    deadline = Deadline(1, budget="fetch_seconds", clock=lambda: next(seconds))

    @contextmanager
    def views(wanted: Sequence[Wanted]) -> Iterator[list[memoryview | None]]:
        yield [None for _ in wanted]

    copies = Copies(LAYOUT, wishes[:20])
    with ThreadPoolExecutor(1) as helper, pytest.raises(BudgetExceeded):
        copies.run(views, helper, deadline)
    assert copies.answers == [0] * READ_RECORDS + [None] * 4
    assert set(map(bytes, buffers)) == {bytes([0xA5]) * LAYOUT.payload_bytes(Kind.HISTORY)}


def as_stored(index: int, codec: str) -> bytes:
    kind, key, position, parent, payload = samples.outgoing(SMALL, Kind.HISTORY, index)
    frame = encode(payload, codec, SMALL.segments(kind))  # type: ignore[arg-type]
    return b"".join(encode_record(SMALL, kind, key=key, position=position, parent=parent, payload=frame))


@pytest.mark.parametrize("codec", ["raw", "zstd", "shuffle-zstd"])
def test_a_record_in_order_is_decoded_into_its_target(codec: str) -> None:
    record = samples.outgoing(SMALL, Kind.HISTORY, 3)
    (wish,), (buffer,) = samples.wanted(SMALL, [record])
    stored = as_stored(3, codec)
    assert copy_verified(SMALL, wish, memoryview(stored), bytearray()) == len(stored)
    assert bytes(buffer) == record.payload


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_whatever_else_a_map_shows_is_not_loaded(codec: str) -> None:
    """Cut short, longer, another record, a flipped bit anywhere: as pages look that were used again."""
    (wish,), _ = samples.wanted(SMALL, [samples.outgoing(SMALL, Kind.HISTORY, 3)])
    right = as_stored(3, codec)
    wrong = [b"", right[:100], right[:-1], right + b"x", as_stored(5, codec), bytes(len(right))]
    wrong.append(missing_record(SMALL, Kind.HISTORY, key=samples.key(3)))
    wrong += [right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :] for at in range(0, len(right), 7)]
    for record in wrong:
        assert copy_verified(SMALL, wish, memoryview(record), bytearray()) is None


@given(st.lists(st.integers(1, 2 * READ_BYTES), max_size=100))
def test_runs_cover_all_records_in_order_within_the_bounds_of_a_read(sizes: list[int]) -> None:
    cut = list(runs(sizes))
    assert [index for run in cut for index in run] == list(range(len(sizes)))
    for run in cut:
        assert 1 <= len(run) <= READ_RECORDS
        assert len(run) == 1 or sum(sizes[index] for index in run) <= READ_BYTES


def answer(tenant_id: str | None = "t") -> ServiceInfo:
    limits = ServiceLimits(layouts_per_tenant=1, layout_bytes=1, keys_per_request=1, record_bytes=1, body_bytes=1)
    return ServiceInfo(
        name="kvcairn", version="1", api=1, generation="g", open=True, limits=limits, features=[], tenant_id=tenant_id
    )


def test_a_lease_asks_once_in_a_while_and_leaves_a_service_alone_that_did_not_answer() -> None:
    asked: list[float] = []
    answers: list[ServiceInfo | ClientError] = []
    now = [0.0]

    def ask(deadline: Deadline) -> ServiceInfo:
        asked.append(now[0])
        found = answers.pop(0)
        if isinstance(found, ClientError):
            raise found
        return found

    def told(at: float) -> str | None:
        now[0] = at
        try:
            return lease.service(Deadline(1, budget="b")).tenant_id
        except ClientError as error:
            return type(error).__name__

    lease = Lease(ask, clock=lambda: now[0])
    answers += [answer("a"), answer("b"), BadAnswer("x"), answer("c"), answer(None), answer("d")]
    step = LEASE_SECONDS
    assert [told(at * step) for at in (0, 0.9, 1, 1.9, 2, 2.5, 3, 4, 4.5, 5)] == [
        "a", "a", "b", "b", "BadAnswer", "ServiceUnreachable", "c", "BadAnswer",
        "ServiceUnreachable", "d",
    ]  # fmt: skip
    assert asked == [at * step for at in (0, 1, 2, 3, 4, 5)]
