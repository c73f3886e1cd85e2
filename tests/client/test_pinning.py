"""A real service that is short of space: what goes between lookup and fetch is a shorter hit, and a pin keeps it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.errors import Refused, ServiceBusy
from kvcairn_client.records import Lookup, Ref
from kvcairn_client.report import PrefillResult
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.layout import Kind, Layout
from serving import ServiceProcess, running_service
from tiny_models import Oracle, differences, make_model, make_prompt, same_bits

STEP = 128
BLOCKS = 8
CAPACITY_BYTES = 2 << 20
COARSE, FINE = samples.layout("org/coarse", row_bytes=16 << 10), samples.layout("org/fine", row_bytes=256)
ORACLE = Oracle(make_model(), step=STEP)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(tmp_path_factory.mktemp("small") / "data", "--capacity", str(CAPACITY_BYTES)) as running:
        yield running


class Meddled(Client):
    """A client to whose service something happens after every lookup."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def lookup(self, *asked: Any, **options: Any) -> Lookup:
        found = super().lookup(*asked, **options)
        self.between()
        return found


def prefilled(client: Client, seed: int) -> PrefillResult:
    """One prompt of eight blocks and five tokens, by a process without pools of its own; what is new is stored."""
    with CachedPrefill(make_model(), client, model_id="tiny", block_tokens=STEP) as prefill:
        return prefill(make_prompt(BLOCKS * STEP + 5, seed=seed))


def layout_of_the_prompt() -> Layout:
    with CachedPrefill(make_model(), None, model_id="tiny", block_tokens=STEP) as prefill:
        return prefill.layout


def assert_right(result: PrefillResult, seed: int) -> None:
    cache, logits = ORACLE.run(make_prompt(BLOCKS * STEP + 5, seed=seed))
    assert same_bits(result.logits, logits)
    assert differences(result.cache, cache) == []


def flood(client: Client, layout: Layout, *, until: Callable[[], bool], at_once: int = 1) -> None:
    """Store other prompts' blocks, some at a time, until it is enough."""
    for start in range(0, 1000, at_once):
        if until():
            return
        batch = [samples.outgoing(layout, Kind.HISTORY, 2 * index) for index in range(start, start + at_once)]
        client.store(layout, batch, codec="raw")
    raise AssertionError("a thousand records were not enough")


def test_what_is_evicted_between_lookup_and_fetch_is_a_shorter_hit_and_the_same_bits(small: ServiceProcess) -> None:
    layout = layout_of_the_prompt()
    with Meddled(small.url) as client, Client(small.url) as other:
        refs = [Ref(Kind.HISTORY, key) for key in prefilled(client, seed=1).block_keys]
        looked: list[bool] = []

        def evict_the_tail() -> None:
            looked.append(all(other.exists(layout, refs)))
            flood(other, FINE, until=lambda: sum(other.exists(layout, refs)) <= BLOCKS // 2)

        flood(other, COARSE, until=lambda: other.stats().charged_bytes > CAPACITY_BYTES - (64 << 10))
        client.between = evict_the_tail  # type: ignore[method-assign]
        result = prefilled(client, seed=1)
        assert looked == [True], "all was there when it was looked for"
        assert 0 < result.report.hit_tokens <= BLOCKS * STEP // 2
        assert result.report.bytes_received > 0
        assert_right(result, seed=1)


def test_a_pinned_prompt_restores_as_before_whatever_is_stored(small: ServiceProcess) -> None:
    layout = layout_of_the_prompt()
    with Client(small.url) as client:
        keys = prefilled(client, seed=2).block_keys
        before = prefilled(client, seed=2).report
        made = client.pin(layout, keys, ttl_seconds=600, name="prompt")
        assert (made.history_blocks, made.state_tokens[0], made.name) == (BLOCKS, BLOCKS * STEP, "prompt")
        assert client.pins().pins == [made]
        others = [Ref(Kind.HISTORY, key) for key in prefilled(client, seed=3).block_keys]
        third = samples.layout("org/third", row_bytes=16 << 10)
        flood(client, third, until=lambda: not any(client.exists(layout, others)), at_once=8)
        after = prefilled(client, seed=2)
        places = ("hit_tokens", "loaded_tokens", "replayed_tokens", "computed_tokens", "state_tokens", "bytes_received")
        assert [getattr(after.report, name) for name in places] == [getattr(before, name) for name in places]
        assert after.report.replayed_tokens == 0
        assert_right(after, seed=2)
        assert client.unpin(made) is True
        assert client.unpin(made) is False
        assert client.pins().pins == []


def test_a_pin_that_cannot_be_is_refused_in_the_services_words(small: ServiceProcess) -> None:
    layout = samples.layout("org/large", row_bytes=32 << 10)
    with Client(small.url) as client:
        with pytest.raises(Refused, match="nothing of this prefix is stored"):
            client.pin(layout, samples.keys(3), ttl_seconds=60)
        client.store(layout, samples.prompt(layout, 6), codec="raw")
        with pytest.raises(Refused, match="pins may take") as never:
            client.pin(layout, samples.keys(6), ttl_seconds=60)
        assert never.value.status == 413
        made = client.pin(layout, samples.keys(2), ttl_seconds=60)
        assert made.history_blocks == 2
        other = samples.layout("org/large-too", row_bytes=32 << 10)
        client.store(other, samples.prompt(other, 2), codec="raw")
        with pytest.raises(ServiceBusy, match="are taken") as busy:
            client.pin(other, samples.keys(2), ttl_seconds=60)
        assert busy.value.retry_after_seconds
        client.unpin(made)
        with pytest.raises(ValueError, match="32 bytes"):
            client.pin(layout, [b"short"], ttl_seconds=60)
