"""An hour of real requests through the store: what hits at 5, 10 and 25 % of what they touch, and what that costs.

The store is the service's own PrefixStore with the sizes of V4-Flash, on entries without payloads, driven by the
trace's clock; it is watched all the while (trace_entries.py). Beside it stand least-recently-used and clairvoyant
replacement of blocks, and a cache without bounds, which share no code with it. The first prompts also go through a
service process over HTTP, in small records, and must come out as in this process.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.measure import Figure
from benchmarks.trace_caches import ServiceCache, StoreCache
from benchmarks.trace_data import BLOCK_TOKENS, Prompt, distinct_blocks, key_chains, read_trace
from benchmarks.trace_entries import pages_bytes
from benchmarks.trace_policies import clairvoyant, least_recently_used, unbounded
from benchmarks.trace_replay import Strategy, Tally, replay
from examples.service import running_service
from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash
from kvcairn_protocol.layout import CarryStream, HistoryStream, Kind, Layout
from kvcairn_protocol.strategy import Anchored, Periodic, Zero

ANCHORED, PERIODIC, ZERO = Anchored(), Periodic(every_tokens=4096), Zero()
WITHOUT_BOUNDS = 10.0
"""Whatever a strategy stores of the whole hour fits into less."""
REPLAYS = (
    (ANCHORED, 0.05), (ANCHORED, 0.10), (ANCHORED, 0.25), (ANCHORED, WITHOUT_BOUNDS),
    (PERIODIC, 0.10), (ZERO, 0.10),
)  # fmt: skip
"""Strategies and capacities, these in shares of the footprint: what the hour's distinct blocks take."""

TINY_REPLAYS = ((ANCHORED, 0.50),)
TINY_PROMPTS, SERVICE_PROMPTS, SERVICE_SHARE = 30, 800, 0.25
SMALL_BLOCK_BYTES, SMALL_STATE_BYTES = 3_900, 8_000
"""On pages of 4 KiB 1 : 2, where V4-Flash has 482 : 890."""
LEAST_OF_LRU = 0.9
BUDGETS = Budgets(fetch_seconds=60.0, store_seconds=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One replay. capacity_bytes: the store's; kept_bytes: by kind at the end; evicted_records: all along."""

    strategy: Strategy
    share: float
    tally: Tally
    capacity_bytes: int
    kept_bytes: dict[Kind, int]
    evicted_records: dict[Kind, int]
    kept_states: int


def run(*, rounds: int, tiny: bool) -> list[Figure]:  # noqa: ARG001 - the same trace gives the same answer each time
    at_most = TINY_PROMPTS if tiny else None
    prompts = read_trace(at_most=at_most)
    done = (replayed(*each, at_most=at_most) for each in TINY_REPLAYS) if tiny else in_processes(REPLAYS)
    return [*(_figure(each, prompts) for each in done), _over_http(prompts[:SERVICE_PROMPTS])]


def in_processes(replays: Sequence[tuple[Strategy, float]]) -> Iterator[Replayed]:
    """Each replay in a process of its own, as many at a time as there are cores: nothing here is timed."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        yield from pool.map(replayed, *zip(*replays, strict=True))


def replayed(strategy: Strategy, share: float, *, at_most: int | None = None) -> Replayed:
    """The trace through a PrefixStore of V4-Flash's records, with `share` of the footprint for a capacity."""
    layout, prompts = flash("trace"), read_trace(at_most=at_most)
    capacity_bytes = int(share * distinct_blocks(prompts) * block_bytes(layout))
    return replay_in_process(prompts, layout, strategy, share=share, capacity_bytes=capacity_bytes)


def replay_in_process(
    prompts: Sequence[Prompt], layout: Layout, strategy: Strategy, *, share: float, capacity_bytes: int
) -> Replayed:
    cache = StoreCache(layout, capacity_bytes=capacity_bytes)
    try:
        chains = key_chains(layout, prompts)
        tally = replay(prompts, chains, cache, layout=layout, strategy=strategy, set_clock=cache.set_clock)
        faults = cache.prefixes.check_integrity()
        assert not faults, faults
        usages = {usage.kind: usage for usage in cache.prefixes.usage()}
    finally:
        cache.prefixes.close()
    return Replayed(
        strategy=strategy,
        share=share,
        tally=tally,
        capacity_bytes=capacity_bytes,
        kept_bytes=dict(cache.entries.kept_bytes),
        evicted_records={kind: usage.evicted_records for kind, usage in usages.items()},
        kept_states=usages[Kind.STATE].records if Kind.STATE in usages else 0,
    )


def block_bytes(layout: Layout) -> int:
    """What a history block of this layout takes."""
    return pages_bytes(layout.payload_bytes(Kind.HISTORY))


def name_of(strategy: Strategy) -> str:
    return f"periodic {strategy.every_tokens:,}" if isinstance(strategy, Periodic) else strategy.kind


def _figure(done: Replayed, prompts: Sequence[Prompt]) -> Figure:
    chains = [prompt.block_ids for prompt in prompts]
    room = int(done.share * distinct_blocks(prompts))
    recent = least_recently_used(chains, capacity_blocks=room)
    best, all_of_it = clairvoyant(chains, capacity_blocks=room), unbounded(chains)
    where = "without bounds" if done.share >= 1 else f"at {100 * done.share:.0f} % of the footprint"
    rates = (hits / done.tally.asked_blocks for hits in (recent, best, all_of_it))
    limit = "least recently used {:.2%}, clairvoyant {:.2%}, without bounds {:.2%}".format(*rates)
    return Figure(
        f"trace {where}, {name_of(done.strategy)}: blocks that hit", 100 * done.tally.hit_rate, "%", _detail(done),
        limit=limit, at_least=100 * LEAST_OF_LRU * recent / done.tally.asked_blocks if _is_judged(done) else None,
    )  # fmt: skip


def _is_judged(done: Replayed) -> bool:
    """The default strategy is; the others trade hits for states, or states for hits, on purpose."""
    return isinstance(done.strategy, Anchored)


def _detail(done: Replayed) -> str:
    tally, history = done.tally, done.kept_bytes.get(Kind.HISTORY, 0)
    states = done.kept_bytes.get(Kind.STATE, 0)
    evicted_blocks, evicted_states = (done.evicted_records.get(kind, 0) for kind in (Kind.HISTORY, Kind.STATE))
    return (
        f"{tally.hit_tokens:,} tokens, {tally.replayed_share:.1%} of them replayed; "
        f"of {done.capacity_bytes / 1e9:,.1f} GB {history / 1e9:,.1f} are history and {states / 1e9:,.1f} are "
        f"{done.kept_states:,} states; "
        f"{evicted_blocks:,} blocks and {evicted_states:,} states evicted"
    )


def _over_http(prompts: Sequence[Prompt]) -> Figure:
    """The same decisions, whether records cross a socket and a disk or not."""
    layout = small_layout()
    capacity_bytes = int(SERVICE_SHARE * distinct_blocks(prompts) * block_bytes(layout))
    here = replay_in_process(prompts, layout, ANCHORED, share=SERVICE_SHARE, capacity_bytes=capacity_bytes).tally
    with (
        running_service("--capacity", str(capacity_bytes)) as service,
        Client(service.url, budgets=BUDGETS) as client,
    ):
        there = replay(
            prompts, key_chains(layout, prompts), ServiceCache(layout, client), layout=layout, strategy=ANCHORED
        )
    return Figure(
        "trace through a service / in this process: blocks that hit", there.hit_blocks / here.hit_blocks, "×",
        f"the first {len(prompts):,} prompts, over HTTP, each record compared: {there.hit_blocks:,} blocks hit, "
        f"{there.replayed_tokens:,} tokens replayed, {there.stored_states:,} states stored",
        limit=f"in process: {here.hit_blocks:,}, {here.replayed_tokens:,}, {here.stored_states:,}",
        at_least=0.999, at_most=1.001,
    )  # fmt: skip


def small_layout() -> Layout:
    """Records of one and of two pages, with V4-Flash's way to replay."""
    history = HistoryStream(
        kind="history", name="block", layer=0, tokens_per_row=BLOCK_TOKENS, row_shape=(SMALL_BLOCK_BYTES,),
        dtype="uint8",
    )  # fmt: skip
    state = CarryStream(kind="carry", name="state", layer=0, rows=1, row_shape=(SMALL_STATE_BYTES,), dtype="uint8")
    return Layout(
        version=1, model="trace", chained=True, block_tokens=BLOCK_TOKENS, layers=1,
        replay_tokens=flash("trace").replay_tokens, streams=(history, state), identity={},
    )  # fmt: skip
