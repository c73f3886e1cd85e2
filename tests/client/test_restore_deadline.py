"""One restore, however often it has to plan again, is over by one deadline: the most that a prefill can lose."""

from collections.abc import Iterator, Sequence

import pytest

import client_samples as samples
from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BudgetExceeded
from kvcairn_client.failopen import FailOpen
from kvcairn_client.faults import silent
from kvcairn_client.records import FetchResult, Lookup, Wanted
from kvcairn_client.testing import FakeService
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.strategy import Full
from memory_service import MemoryService
from tiny_models import Oracle, differences, make_model, make_prompt, same_bits

STEP = 128
PROMPT = make_prompt(1100)
BUDGETS = Budgets(control_seconds=2, fetch_seconds=10, restore_seconds=12)


class Time:
    """A clock that stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class JustInTime(Client):
    """Takes all the time that a call may take, and then answers right; the states that it had named are never there.

    fetches: how many were begun; refused: how many were over before they began.
    """

    def __init__(self, time: Time, memory: MemoryService) -> None:
        super().__init__("http://127.0.0.1:1", budgets=BUDGETS)
        self.time, self.memory = time, memory
        self.fetches = self.refused = 0

    def lookup(self, layout: Layout, block_keys: Sequence[bytes], *, within: Deadline | None = None) -> Lookup:
        self.take(BUDGETS.control_seconds, within)
        return self.memory.lookup(layout, block_keys)

    def fetch(self, layout: Layout, wanted: Sequence[Wanted], *, within: Deadline | None = None) -> FetchResult:
        self.fetches += 1
        self.take(BUDGETS.fetch_seconds, within)
        return self.memory.fetch(layout, wanted)

    def take(self, seconds: float, within: Deadline | None) -> None:
        try:
            left = seconds if within is None else within.remaining_seconds()
        except BudgetExceeded:
            self.refused += 1
            raise
        self.time.now += min(seconds, left)


def test_a_service_that_is_just_in_time_every_time_costs_one_restore_budget_and_no_more() -> None:
    """Without the deadline of the whole, each plan would cost another fetch_seconds."""
    memory, time = MemoryService(Full()), Time()
    with CachedPrefill(make_model(), memory, model_id="tiny", block_tokens=STEP) as writer:
        writer(PROMPT)
        assert writer.flush()
    memory.lost = {place for place in memory.records if place[0] is Kind.STATE}
    client = JustInTime(time, memory)
    with CachedPrefill(make_model(), FailOpen(client, clock=time), model_id="tiny", block_tokens=STEP) as prefill:
        result = prefill(PROMPT)
    assert (client.fetches, client.refused) == (2, 1)
    assert time.now - Time.now == BUDGETS.restore_seconds
    assert result.report.hit_tokens > 0, "the history came with the first fetch, and is used"
    cache, logits = Oracle(make_model(), step=STEP).run(PROMPT)
    assert same_bits(result.logits, logits)
    assert differences(result.cache, cache) == []


def test_each_restore_has_its_time_anew() -> None:
    time = Time()
    source = FailOpen(JustInTime(time, MemoryService()), clock=time)
    for _ in range(2):
        deadline = source.restoring().deadline
        assert deadline.remaining_seconds() == BUDGETS.restore_seconds
        time.now += 100


@pytest.fixture
def patient(service: FakeService) -> Iterator[Client]:
    """With budgets that no test waits for."""
    with Client(service.url, budgets=Budgets(control_seconds=60, fetch_seconds=60, stall_seconds=60)) as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/prefixes:lookup", "/v1/records:fetch", "/v1/records:report"])
def test_a_call_of_a_restore_ends_with_it_whatever_its_own_budget(
    service: FakeService, patient: Client, path: str
) -> None:
    """A report of bad records, too: the fetch it belongs to has what it could get, and the engine goes on."""
    layout = samples.layout()
    records = samples.prompt(layout, 2)
    patient.store(layout, records, codec="raw")
    service.faults[path] = silent
    if path == "/v1/records:report":
        service.faults["/v1/records:fetch"] = lambda given: [given.head, given.body[:-1] + bytes([given.body[-1] ^ 1])]
    deadline = Deadline(0.3, budget="restore_seconds")
    if path == "/v1/prefixes:lookup":
        with pytest.raises(BudgetExceeded, match="restore_seconds"):
            patient.lookup(layout, samples.keys(2), within=deadline)
    elif path == "/v1/records:fetch":
        with pytest.raises(BudgetExceeded, match="restore_seconds"):
            patient.fetch(layout, samples.wanted(layout, records)[0], within=deadline)
    else:
        assert patient.fetch(layout, samples.wanted(layout, records)[0], within=deadline).loaded == [True, False]
        assert service.seen[-1] == "POST /v1/records:report"
    with pytest.raises(BudgetExceeded):
        deadline.remaining_seconds()
