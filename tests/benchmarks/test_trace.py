"""The replay of the trace: its policies beside answers by hand and by trying everything, and its watch on the store."""

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from benchmarks.trace import ANCHORED, ZERO, block_bytes, replay_in_process, small_layout
from benchmarks.trace_data import DATA, Prompt, distinct_blocks, key_chains, read_trace
from benchmarks.trace_entries import EntryStore
from benchmarks.trace_policies import clairvoyant, least_recently_used, unbounded
from benchmarks.trace_replay import Strategy
from kvcairn_protocol.deepseek_v4 import flash
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.strategy import Periodic
from kvcairn_storage.store import Entry, Put, RecordKey

ROOT = Path(__file__).parents[2]
Chains = list[list[int]]

BACK_AND_FORTH = [[1, 2], [1, 3], [1, 2]]
LONGER_THAN_ROOM = [[1, 2, 3], [1, 2, 3]]


@st.composite
def chains(draw: st.DrawFn) -> Chains:
    """Prompts as paths of one small tree, whose block i + 1 follows block i or the one before that; 0 is the root."""
    parents = [draw(st.integers(max(0, block - 1), block)) for block in range(draw(st.integers(1, 6)))]

    def path(block: int) -> list[int]:
        return [*path(parents[block - 1]), block] if block else []

    return [path(draw(st.integers(1, len(parents)))) for _ in range(draw(st.integers(1, 6)))]


def best_by_trying(asked: Chains, capacity: int) -> int:
    """The most that any choice of what to keep after each prompt can hit."""

    @cache
    def best(turn: int, kept: frozenset[int]) -> int:
        if turn == len(asked):
            return 0
        run = 0
        while run < len(asked[turn]) and asked[turn][run] in kept:
            run += 1
        here = sorted(kept | set(asked[turn]))
        choices = combinations(here, min(capacity, len(here)))
        return run + max(best(turn + 1, frozenset(choice)) for choice in choices)

    return best(0, frozenset())


@pytest.mark.parametrize(
    ("asked", "recent", "best", "all_of_it"),
    [(BACK_AND_FORTH, 2, 3, 3), (LONGER_THAN_ROOM, 0, 2, 3), ([[1], [2], [1], [2]], 2, 2, 2)],
)
def test_each_policy_hits_what_it_hits_by_hand(asked: Chains, recent: int, best: int, all_of_it: int) -> None:
    assert least_recently_used(asked, capacity_blocks=2) == recent
    assert clairvoyant(asked, capacity_blocks=2) == best
    assert unbounded(asked) == all_of_it


@given(chains(), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_no_choice_of_what_to_keep_hits_more_or_less_than_the_clairvoyant_one(asked: Chains, capacity: int) -> None:
    assert clairvoyant(asked, capacity_blocks=capacity) == best_by_trying(asked, capacity)


def prompts_of(asked: Chains) -> list[Prompt]:
    """One prompt a second, each one token longer than its blocks."""
    return [Prompt(float(turn), 512 * len(chain) + 1, tuple(chain)) for turn, chain in enumerate(asked)]


@given(chains(), st.integers(6, 8))
@settings(max_examples=15, deadline=None)
def test_a_store_with_room_for_every_block_hits_what_a_cache_without_bounds_hits(asked: Chains, room: int) -> None:
    layout = small_layout()
    done = replay_in_process(prompts_of(asked), layout, ZERO, share=1, capacity_bytes=room * block_bytes(layout))
    assert done.tally.hit_blocks == unbounded(asked)


@pytest.mark.parametrize(("strategy", "replayed_tokens", "states"), [(ANCHORED, 1024, 4), (ZERO, 2048, 0)])
def test_the_second_prompt_to_branch_off_finds_the_state_that_the_first_left(
    strategy: Strategy, replayed_tokens: int, states: int
) -> None:
    layout, asked = flash("by-hand"), [[1, 2, 3, 4], [1, 2, 5], [1, 2, 6]]
    done = replay_in_process(prompts_of(asked), layout, strategy, share=1, capacity_bytes=1 << 30)
    tally = done.tally
    assert (tally.asked_blocks, tally.hit_blocks, tally.stored_blocks) == (10, 4, 6)
    assert (tally.replayed_tokens, tally.stored_states, tally.loaded_states) == (replayed_tokens, states, states // 4)


def test_without_states_a_hit_longer_than_a_replay_costs_the_replay_alone() -> None:
    stem = list(range(1, 13))
    asked = [[*stem, 13], [*stem, 14]]
    layout = flash("by-hand")
    done = replay_in_process(prompts_of(asked), layout, ZERO, share=1, capacity_bytes=1 << 30)
    # 12 blocks are 6,144 tokens; 5,462 before their end lies in the second block, which starts at 512.
    assert (layout.replay_tokens, done.tally.replayed_tokens) == (5_462, 6_144 - 512)


@pytest.mark.parametrize("strategy", [ANCHORED, Periodic(every_tokens=512)])
def test_states_leave_history_half_of_the_capacity_but_for_a_block_and_go_with_their_blocks(strategy: Strategy) -> None:
    prompts, layout = read_trace(at_most=60), flash("trace")
    capacity_bytes = distinct_blocks(prompts) * block_bytes(layout) // 2
    done = replay_in_process(prompts, layout, strategy, share=0.5, capacity_bytes=capacity_bytes)
    assert min(done.evicted_records.values()) > 0
    assert done.kept_bytes[Kind.HISTORY] > capacity_bytes / 2 - block_bytes(layout)


def test_the_trace_is_an_hour_whose_ids_name_prefixes() -> None:
    prompts = read_trace()
    assert (len(prompts), round(prompts[-1].seconds)) == (12_031, 3_537)
    assert sum(len(prompt.block_ids) for prompt in prompts) == 276_491
    assert distinct_blocks(prompts) == 170_899
    few = prompts[:200]
    keys = {key for chain in key_chains(small_layout(), few) for key in chain}
    assert len(keys) == distinct_blocks(few)


def test_an_id_that_stands_behind_two_parents_is_refused() -> None:
    with pytest.raises(ValueError, match="block 3 follows other blocks"):
        list(key_chains(small_layout(), prompts_of([[1, 3], [2, 3]])))


def test_the_trace_is_in_no_wheel_no_source_distribution_and_no_image() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    taken = [*targets["wheel"]["packages"], *targets["sdist"]["include"]]
    assert not [path for path in taken if DATA.is_relative_to(ROOT / path.strip("/"))]
    assert GitIgnoreSpec.from_lines((ROOT / ".dockerignore").read_text().splitlines()).match_file(
        str(DATA.relative_to(ROOT))
    )


def put(kind: Kind, name: int, *, parent: int = 0) -> Put:
    """A record of one page at a key made of `name`; position 512 without a parent, 1,024 behind one."""
    above = bytes([parent] * 16) if parent else bytes(16)
    entry = Entry(1024 if parent else 512, above, 512, 100, 100, 0.0, 0.0)
    return Put(RecordKey("trace", bytes(32), kind, bytes([name] * 32)), entry, [])


def key(kind: Kind, name: int) -> RecordKey:
    return put(kind, name).key


Spoil = Callable[[EntryStore], object]


def write(puts: Sequence[Put], deletes: Sequence[RecordKey] = ()) -> Spoil:
    return lambda store: store.write(puts, deletes)


BLOCK, CHILD, STATE = put(Kind.HISTORY, 1), put(Kind.HISTORY, 2, parent=1), put(Kind.STATE, 1)


@pytest.mark.parametrize(
    ("writes", "fault"),
    [
        ([write([put(Kind.HISTORY, name) for name in range(1, 6)])], "20,480 bytes are kept within a capacity of 16"),
        ([write([CHILD])], "stands where its parent does not"),
        ([write([STATE])], "stands where its block does not"),
        ([write([BLOCK, CHILD]), write([], [BLOCK.key])], "left a child behind"),
        ([write([BLOCK, STATE]), write([], [BLOCK.key])], "left its state behind"),
        ([write([BLOCK, CHILD]), write([], [CHILD.key])], "was driven to 4,096"),
    ],
)
def test_the_watch_sees_what_a_store_must_not_do(writes: Sequence[Spoil], fault: str) -> None:
    entries = EntryStore(capacity_bytes=16_384)
    for each in writes:
        each(entries)
    entries.settle()
    assert fault in " ".join(entries.check_integrity())


def test_the_watch_is_quiet_where_a_leaf_goes_with_its_state_and_another_comes() -> None:
    entries = EntryStore(capacity_bytes=16_384)
    entries.write([BLOCK, CHILD, put(Kind.STATE, 2, parent=1)])
    entries.write([put(Kind.HISTORY, 3, parent=1)], [key(Kind.HISTORY, 2), key(Kind.STATE, 2)])
    entries.settle()
    assert entries.check_integrity() == []
