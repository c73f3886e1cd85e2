"""Restore against a service that loses, cuts and lies: a shorter hit or a replay, and always the right bytes."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcairn_client.records import FetchResult, Lookup, Wanted
from kvcairn_client.report import PrefillResult
from kvcairn_client.restore import MAX_ROUNDS
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.prefix import block_keys
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero
from memory_service import MemoryService
from tiny_models import Oracle, differences, make_model, make_prompt, same_bits

STEP = 128
PROMPT = make_prompt(1100)
LAST = 1024

ORACLE = Oracle(make_model(), step=STEP)


def server(service: MemoryService | None, *, pool_bytes: int = 1 << 24) -> CachedPrefill:
    return CachedPrefill(make_model(), service, model_id="tiny", block_tokens=STEP, pool_bytes=pool_bytes)


def prefill_once(service: MemoryService, prompt: torch.Tensor = PROMPT) -> PrefillResult:
    """A server with empty pools prefills and persists; its result is compared with an uninterrupted run."""
    with server(service) as fresh:
        result = fresh(prompt)
        assert fresh.flush()
        assert_right(result, prompt)
        assert_nothing_is_held(fresh)
    return result


def assert_right(result: PrefillResult, prompt: torch.Tensor = PROMPT) -> None:
    cache, logits = ORACLE.run(prompt)
    assert same_bits(result.logits, logits)
    assert differences(result.cache, cache) == []


def assert_nothing_is_held(prefill: CachedPrefill) -> None:
    for pool in (prefill.pools.blocks, prefill.pools.states):
        pool.check_integrity()
        assert pool.free_rows == pool.capacity


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    with server(None) as prefill:
        yield prefill.layout


@pytest.fixture(scope="module")
def keys(layout: Layout) -> list[bytes]:
    return block_keys(layout, PROMPT[0].numpy())


@pytest.fixture
def full() -> MemoryService:
    """Everything of the prompt: eight blocks, and a state at each of their ends."""
    service = MemoryService(Full())
    prefill_once(service)
    return service


def test_a_state_that_vanished_falls_back_to_an_earlier_one(full: MemoryService, keys: list[bytes]) -> None:
    full.lost = {(Kind.STATE, keys[7]), (Kind.STATE, keys[6])}
    result = prefill_once(full)
    assert (result.report.hit_tokens, result.report.state_tokens) == (LAST, 6 * STEP)
    assert full.fetches == 3


def test_a_missing_state_never_vetoes_history(full: MemoryService, keys: list[bytes]) -> None:
    for key in keys[1:]:
        del full.records[Kind.STATE, key]
    result = prefill_once(full)
    assert result.report.hit_tokens == LAST
    assert result.report.state_tokens is None
    assert result.report.replayed_tokens == 768


def test_a_block_that_vanished_costs_a_shorter_hit_and_is_offered_again(full: MemoryService, keys: list[bytes]) -> None:
    full.lost = {(Kind.HISTORY, keys[4])}
    before = len(full.offered)
    result = prefill_once(full)
    assert (result.report.hit_tokens, result.report.state_tokens) == (4 * STEP, 4 * STEP)
    offered = {record.key for record in full.offered[before:] if record.kind is Kind.HISTORY}
    assert offered == set(keys[4:])


def test_a_transfer_that_breaks_off_is_not_tried_again(full: MemoryService) -> None:
    full.cut_after = 3
    before = len(full.offered)
    result = prefill_once(full)
    assert full.fetches == 1
    assert (result.report.hit_tokens, result.report.loaded_tokens) == (3 * STEP, 0)
    assert [record for record in full.offered[before:] if record.kind is Kind.HISTORY] == []


def test_a_broken_transfer_leaves_what_had_arrived_for_the_next_time(full: MemoryService) -> None:
    full.cut_after = 3
    with server(full) as prefill:
        assert_right(prefill(PROMPT))
        full.cut_after = None
        again = prefill(PROMPT)
        assert_right(again)
        assert again.report.pooled_tokens == LAST


class NeverSends(MemoryService):
    """Has everything, it says, and never sends any of it."""

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup:
        ends = tuple(range(layout.block_tokens, len(block_keys) * layout.block_tokens + 1, layout.block_tokens))
        return Lookup(history_blocks=len(block_keys), hit_tokens=ends[-1], state_tokens=ends[::-1])

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult:  # noqa: ARG002 - it sends nothing
        self.fetches += 1
        return FetchResult(loaded=[False] * len(wanted))


def test_a_service_that_never_sends_what_it_promised_costs_a_few_calls() -> None:
    service = NeverSends()
    assert prefill_once(service).report.hit_tokens == 0
    assert service.fetches <= MAX_ROUNDS


def test_states_outside_the_run_are_not_believed(full: MemoryService, keys: list[bytes]) -> None:
    """A state whose history is gone is of no use, however many there are."""
    del full.records[Kind.HISTORY, keys[2]]
    result = prefill_once(full)
    assert (result.report.hit_tokens, result.report.state_tokens) == (2 * STEP, 2 * STEP)


def test_a_pool_that_is_too_small_for_the_prompt_gives_a_shorter_hit(full: MemoryService, layout: Layout) -> None:
    with server(full, pool_bytes=3 * layout.payload_bytes(Kind.HISTORY)) as prefill:
        for _ in range(2):
            result = prefill(PROMPT)
            assert_right(result)
            assert result.report.hit_tokens == 3 * STEP
            assert_nothing_is_held(prefill)


def test_all_that_was_stored_is_found(full: MemoryService, keys: list[bytes]) -> None:
    """Bug class 3: the writer keeps what no reader asks for. Every record but the windows is read by some prompt."""
    full.fetched.clear()
    for tokens in range(STEP + 1, LAST + 2, STEP):
        prefill_once(full, PROMPT[:, :tokens])
    read = {(ref.kind, ref.key) for ref in full.fetched}
    assert read == {(kind, key) for kind in (Kind.HISTORY, Kind.STATE) for key in keys}


@pytest.mark.parametrize("tokens", [127, 128, 129, 255, 256, 257])
def test_writer_and_reader_agree_on_what_a_hit_is(tokens: int) -> None:
    """Bug class 5: n in one place and n - 1 in another."""
    service = MemoryService(Anchored())
    prompt = PROMPT[:, :tokens]
    prefill_once(service, prompt)
    assert len(service.keys(Kind.HISTORY)) == tokens // STEP
    assert prefill_once(service, prompt).report.hit_tokens == (tokens - 1) // STEP * STEP


def test_a_run_knows_only_states_that_are_true(keys: list[bytes]) -> None:
    service = MemoryService(Zero())
    prefill_once(service)
    service.strategy = Periodic(every_tokens=STEP)
    prefill_once(service)
    positions = sorted((keys.index(key) + 1) * STEP for key in service.keys(Kind.STATE))
    assert positions == [LAST]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_missing_or_lost_the_bytes_are_right(data: st.DataObject, full: MemoryService) -> None:
    names = sorted(name for name in full.records if name[0] is not Kind.WINDOW)
    service = MemoryService(data.draw(st.sampled_from([Full(), Periodic(every_tokens=256), Zero(), Anchored()])))
    absent = data.draw(st.sets(st.sampled_from(names), max_size=6))
    service.records = {name: record for name, record in full.records.items() if name not in absent}
    service.lost = data.draw(st.sets(st.sampled_from(names), max_size=4))
    service.cut_after = data.draw(st.none() | st.integers(0, 9))
    prompt = PROMPT[:, : data.draw(st.sampled_from([129, 400, 512, 1030]))]
    with server(service) as prefill:
        for _ in range(2):
            assert_right(prefill(prompt), prompt)
            assert_nothing_is_held(prefill)
            service.cut_after, service.lost = None, set()
        assert prefill.flush()
    prefill_once(service, prompt)
