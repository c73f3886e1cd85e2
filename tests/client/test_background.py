"""The store queue: never in the engine's way, bounded, alive after every fault."""

import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

import client_samples as samples
from kvcairn_client.background import StoreQueue
from kvcairn_client.client import Client
from kvcairn_client.errors import ServiceUnreachable
from kvcairn_client.failopen import FailOpen
from kvcairn_client.faults import instead, problem, silent
from kvcairn_client.records import Outgoing
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.messages import StoreAnswer

LAYOUT = samples.layout()
STORE = "/v1/records:store"
WAIT = 20.0


class Gate:
    """A target that stores nothing until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[Outgoing]] = []

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: str = "auto") -> StoreAnswer:  # noqa: ARG002
        self.entered.set()
        self.open.wait(WAIT)
        self.batches.append(list(records))
        return StoreAnswer(stored=len(records), present=0, rejected=[])


class Nothing:
    """A target that keeps nothing of what it is given."""

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: str = "auto") -> StoreAnswer:  # noqa: ARG002
        return StoreAnswer(stored=len(records), present=0, rejected=[])


def test_what_is_submitted_gets_stored(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 6, states=[5])
    with StoreQueue(client) as queue:
        assert queue.submit(LAYOUT, records) == 7
        assert queue.flush(WAIT)
        assert queue.counts() == (7, 0, 0, 0, 0)
    assert client.lookup(LAYOUT, samples.keys(6)).state_tokens == (48,)


def test_submitting_does_not_wait_and_what_waits_goes_in_one_body() -> None:
    gate = Gate()
    queue = StoreQueue(gate)
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 1))
    assert gate.entered.wait(WAIT)
    for index in range(1, 9):
        assert queue.submit(LAYOUT, [samples.outgoing(LAYOUT, Kind.HISTORY, index)]) == 1
    assert not queue.flush(0.01)
    gate.open.set()
    assert queue.close(WAIT)
    assert [len(batch) for batch in gate.batches] == [1, 8]


def test_nothing_of_a_payload_is_left_when_it_was_stored() -> None:
    """Nor in the queue's own thread: what it frees while an interpreter ends, tensors above all, aborts the process."""
    payload = np.zeros(LAYOUT.payload_bytes(Kind.HISTORY), np.uint8)
    freed = weakref.ref(payload)
    queue = StoreQueue(Nothing())
    queue.submit(LAYOUT, [samples.outgoing(LAYOUT, Kind.HISTORY, 0)._replace(payload=payload.data)])
    del payload
    assert queue.flush(WAIT)
    assert freed() is None
    assert queue.close(WAIT)
    assert "kvcairn-store" not in [thread.name for thread in threading.enumerate()]


def test_the_bound_holds_and_history_displaces_states() -> None:
    gate = Gate()
    state_bytes, block_bytes = LAYOUT.payload_bytes(Kind.STATE), LAYOUT.payload_bytes(Kind.HISTORY)
    queue = StoreQueue(gate, max_bytes=2 * state_bytes + block_bytes)
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 1))
    assert gate.entered.wait(WAIT)
    queue.submit(LAYOUT, [samples.outgoing(LAYOUT, Kind.STATE, index) for index in range(3)])
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 2)[1:])
    counts = queue.counts()
    assert counts.dropped == 2
    assert counts.held_bytes <= 2 * state_bytes + block_bytes
    gate.open.set()
    assert queue.close(WAIT)
    assert [(record.kind, record.position) for record in gate.batches[1]] == [(Kind.STATE, 8), (Kind.HISTORY, 16)]


def test_a_duplicate_is_not_sent_again_while_it_is_under_way() -> None:
    gate = Gate()
    queue = StoreQueue(gate)
    records = samples.prompt(LAYOUT, 3)
    queue.submit(LAYOUT, records)
    assert gate.entered.wait(WAIT)
    assert queue.submit(LAYOUT, records) == 0
    gate.open.set()
    assert queue.close(WAIT)
    assert sum(map(len, gate.batches)) == 3


@pytest.mark.parametrize("fault", [silent, instead(problem(500)), instead(problem(507))])
def test_a_failing_service_costs_its_batches_and_nothing_more(
    client: Client, service: FakeService, fault: object
) -> None:
    with StoreQueue(client) as queue:
        service.faults[STORE] = fault  # type: ignore[assignment]
        queue.submit(LAYOUT, samples.prompt(LAYOUT, 2))
        assert queue.flush(WAIT)
        assert queue.counts().failed == 2
        del service.faults[STORE]
        queue.submit(LAYOUT, samples.prompt(LAYOUT, 3))
        assert queue.flush(WAIT)
        counts = queue.counts()
        assert (counts.stored + counts.present, counts.failed) == (3, 2)


def test_it_works_behind_fail_open_too(client: Client, service: FakeService) -> None:
    with StoreQueue(FailOpen(client)) as queue:
        service.close()
        queue.submit(LAYOUT, samples.prompt(LAYOUT, 2))
        assert queue.flush(WAIT)
        assert queue.counts().failed == 2


def test_a_record_that_cannot_be_stored_does_not_end_the_thread(client: Client) -> None:
    with StoreQueue(client) as queue:
        queue.submit(LAYOUT, [samples.outgoing(LAYOUT, Kind.HISTORY, 0)._replace(payload=b"short")])
        assert queue.flush(WAIT)
        queue.submit(LAYOUT, samples.prompt(LAYOUT, 1))
        assert queue.flush(WAIT)
        assert queue.counts()[:3] == (1, 0, 1)


def test_an_unheard_of_error_costs_its_batch_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Gate):
        def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: str = "auto") -> StoreAnswer:
            if not self.entered.is_set():
                self.entered.set()
                raise ZeroDivisionError
            return super().store(layout, records, codec=codec)

    target = Broken()
    target.open.set()
    queue = StoreQueue(target)
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 2))
    assert queue.flush(WAIT)
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 2))
    assert queue.close(WAIT)
    assert queue.counts()[:3] == (2, 0, 2)
    assert "ZeroDivisionError" in caplog.text


def test_closing_is_bounded_and_drops_what_is_left() -> None:
    gate = Gate()
    queue = StoreQueue(gate)
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 1))
    assert gate.entered.wait(WAIT)
    queue.submit(LAYOUT, samples.prompt(LAYOUT, 4))
    assert not queue.close(0.05)
    assert queue.counts().dropped == 3
    assert queue.submit(LAYOUT, samples.prompt(LAYOUT, 9)) == 0
    gate.open.set()
    assert queue.close(WAIT)


def test_a_queue_that_was_never_used_closes_at_once() -> None:
    class Never:
        def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: str = "auto") -> StoreAnswer:  # noqa: ARG002
            raise ServiceUnreachable("nobody was asked")

    queue = StoreQueue(Never())
    assert queue.flush(0)
    assert queue.close(0)
