"""Reports of use: never in the engine's way, whoever closes or forks meanwhile."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from kvcairn_client.background import StoreQueue
from kvcairn_client.model_layout import describe
from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_client.records import Lookup, Ref
from kvcairn_client.sessions import Pools
from kvcairn_client.transformers import CachedPrefill
from kvcairn_client.use import UseReporter
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.prefix import block_keys
from memory_service import MemoryService
from tiny_models import make_model, make_prompt

STEP = 128


class SlowService(MemoryService):
    """Answers a touch when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int:
        self.asked.set()
        self.let.wait(20)
        return super().touch(layout, block_keys=block_keys, refs=refs)


@pytest.fixture
def service() -> Iterator[SlowService]:
    made = SlowService()
    yield made
    made.let.set()


@pytest.fixture(scope="module")
def pools() -> Pools:
    model_cache = describe(make_model(), model_id="tiny", block_tokens=STEP)
    return Pools(
        model_cache, BlockPool(model_cache.layout, capacity_blocks=4), StatePool(model_cache.slot_layout, slots=2)
    )


def make_reporter(pools: Pools, service: SlowService) -> tuple[UseReporter, list[bytes]]:
    keys = block_keys(pools.model_cache.layout, range(300))
    return UseReporter(pools, service, StoreQueue(service)), keys


def test_what_comes_during_a_report_is_left_out(pools: Pools, service: SlowService) -> None:
    reporter, keys = make_reporter(pools, service)
    service.records = {(Kind.HISTORY, key): b"" for key in keys}
    reporter.report(keys, blocks=1, state_tokens=None)
    assert service.asked.wait(20)
    reporter.report(keys, blocks=2, state_tokens=None)
    assert not reporter.flush(0.01)
    service.let.set()
    assert reporter.flush(20)
    assert [ref.key for ref in service.touched] == [keys[0]]
    reporter.report(keys, blocks=2, state_tokens=None)
    assert reporter.flush(20)
    assert [ref.key for ref in service.touched] == [keys[0], keys[1]]


def test_after_a_close_nothing_is_reported_and_nothing_raised(pools: Pools, service: SlowService) -> None:
    reporter, keys = make_reporter(pools, service)
    reporter.close(1.0)
    reporter.report(keys, blocks=1, state_tokens=None)
    assert not service.asked.is_set()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_no_report_of_its_parent(pools: Pools, service: SlowService) -> None:
    reporter, keys = make_reporter(pools, service)
    reporter.report(keys, blocks=1, state_tokens=None)
    assert service.asked.wait(20)
    child = os.fork()
    if child == 0:
        os._exit(0 if reporter.flush(60.0) else 1)
    assert os.waitpid(child, 0)[1] == 0


class Meddled(MemoryService):
    """Lets somebody act while a lookup is under way."""

    meddle: Callable[[], None] | None = None

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup:
        if self.meddle is not None:
            self.meddle()
        return super().lookup(layout, block_keys)


def test_a_close_in_the_middle_of_a_prefill_lets_it_end() -> None:
    """It has its hit in the pools, whose use it would report after the close."""
    service, prompt = Meddled(), make_prompt(700)
    with CachedPrefill(make_model(), service, model_id="tiny", block_tokens=STEP) as prefill:
        prefill(prompt)
        assert prefill.flush()
        service.meddle = prefill.close
        longer = torch.cat([prompt, make_prompt(200, seed=8)], dim=1)
        assert prefill(longer).report.pooled_tokens == 640
