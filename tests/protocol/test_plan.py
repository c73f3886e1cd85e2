"""Restore plans against an oracle that tries every start there is, and the figures of DeepSeek-V4."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.deepseek_v4 import flash, pro
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.plan import RestorePlan, plan_restore, states_to_keep, usable_tokens, windows_to_keep
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero
from protocol_samples import history, layout, window

BLOCK = 8
LAYOUTS = st.sampled_from([
    layout(replay_tokens=6), layout(replay_tokens=8), layout(replay_tokens=17), layout(replay_tokens=1000),
    layout(replay_tokens=None), layout(replay_tokens=0, streams=[history()]),
])  # fmt: skip
STORED = st.sets(st.integers(-8, 120))


def plan(made: Layout, *, prompt: int, blocks: int, states: Collection[int] = ()) -> RestorePlan:
    return plan_restore(made, prompt_tokens=prompt, history_blocks=blocks, state_tokens=states)


def latest_start(made: Layout, *, prompt: int, blocks: int, states: Collection[int]) -> tuple[int, int]:
    """The hit, and the latest legal start: 0, a usable state, or a block end with enough tokens left to replay."""
    hits = [h for h in range(0, prompt, BLOCK) if h <= blocks * BLOCK]
    hit = max(hits, default=0)
    ends = range(0, hit + 1, BLOCK)
    legal = [p for p in ends if p == 0 or p in states]
    if made.replay_tokens is not None:
        legal += [p for p in ends if hit - p >= made.replay_tokens]
    return hit, max(legal)


@given(LAYOUTS, st.integers(0, 130), st.integers(0, 20), STORED)
def test_a_plan_starts_as_late_as_anything_legal(made: Layout, prompt: int, blocks: int, states: set[int]) -> None:
    if not made.has_state:
        states = set(range(0, 200, BLOCK))
    found = plan(made, prompt=prompt, blocks=blocks, states=states)
    assert (found.hit_tokens, found.start_tokens) == latest_start(made, prompt=prompt, blocks=blocks, states=states)


@given(LAYOUTS, st.integers(1, 130), st.integers(0, 20), STORED)
def test_a_plan_never_covers_the_whole_prompt(made: Layout, prompt: int, blocks: int, states: set[int]) -> None:
    found = plan(made, prompt=prompt, blocks=blocks, states=states)
    assert 0 <= found.start_tokens <= found.hit_tokens < prompt
    assert found.computed_tokens == prompt - found.hit_tokens > 0
    assert found.load_tokens <= found.hit_tokens


@given(LAYOUTS, st.integers(0, 130), st.integers(0, 20), STORED)
def test_a_plan_loads_only_what_is_stored(made: Layout, prompt: int, blocks: int, states: set[int]) -> None:
    found = plan(made, prompt=prompt, blocks=blocks, states=states)
    assert found.load_tokens % BLOCK == found.start_tokens % BLOCK == 0
    assert found.load_tokens <= blocks * BLOCK
    assert found.state_tokens in {None, *states}
    if found.state_tokens is not None:
        assert found.start_tokens == found.load_tokens == found.state_tokens


@given(LAYOUTS, st.integers(0, 130), st.integers(0, 20), STORED)
def test_a_run_without_a_state_is_long_enough_or_from_zero(
    made: Layout, prompt: int, blocks: int, states: set[int]
) -> None:
    found = plan(made, prompt=prompt, blocks=blocks, states=states)
    if found.state_tokens is None and made.has_state and found.start_tokens:
        assert found.is_replay
        assert found.load_tokens == found.hit_tokens
        assert made.replay_tokens is not None
        assert found.replayed_tokens >= made.replay_tokens


@given(st.integers(0, 130), st.integers(0, 20), STORED)
def test_states_that_cannot_be_used_are_as_good_as_none(prompt: int, blocks: int, states: set[int]) -> None:
    made = layout()
    hit = min(blocks * BLOCK, usable_tokens(made, prompt))
    usable = {s for s in states if 0 < s <= hit and s % BLOCK == 0}
    found, same = (plan(made, prompt=prompt, blocks=blocks, states=s) for s in (states, usable))
    assert found == same


def test_the_usable_hit_leaves_a_token_to_compute() -> None:
    assert [usable_tokens(layout(), n) for n in (0, 1, 8, 9, 16, 17, 24)] == [0, 0, 0, 8, 8, 16, 16]


def step(found: RestorePlan) -> tuple[int, int, int | None]:
    return found.start_tokens, found.load_tokens, found.state_tokens


def test_a_missing_state_falls_back_to_an_earlier_one_then_to_replay_then_to_a_shorter_hit() -> None:
    made = layout(replay_tokens=17)
    assert step(plan(made, prompt=81, blocks=10, states=[80, 64, 40])) == (80, 80, 80)
    assert step(plan(made, prompt=81, blocks=10, states=[64, 40])) == (64, 64, 64)
    assert step(plan(made, prompt=81, blocks=10, states=[40])) == (56, 80, None)
    assert step(plan(made, prompt=81, blocks=10)) == (56, 80, None)
    assert step(plan(made, prompt=81, blocks=5, states=[40])) == (40, 40, 40)
    assert step(plan(made, prompt=81, blocks=3)) == (0, 0, None)
    assert step(plan(made, prompt=81, blocks=0, states=[80])) == (0, 0, None)


def test_a_state_wins_against_a_replay_that_starts_at_the_same_token() -> None:
    made = layout(replay_tokens=16)
    assert step(plan(made, prompt=81, blocks=10, states=[64])) == (64, 64, 64)


def test_what_cannot_be_replayed_starts_over_without_a_state() -> None:
    found = plan(layout(replay_tokens=None), prompt=81, blocks=10)
    assert step(found) == (0, 0, None)
    assert (found.hit_tokens, found.replayed_tokens, found.is_replay) == (80, 80, False)


def test_a_state_is_never_rebuilt_by_replaying_nothing() -> None:
    found = plan(layout(replay_tokens=0), prompt=81, blocks=10)
    assert step(found) == step(plan(layout(replay_tokens=None), prompt=81, blocks=10))


def test_history_alone_restores_at_the_hit() -> None:
    found = plan(layout(replay_tokens=0, streams=[history()]), prompt=81, blocks=10)
    assert step(found) == (80, 80, None)
    assert not found.is_replay


@pytest.mark.parametrize(("made", "hit", "start"), [
    (flash("m"), 131_072, 125_440), (flash("m"), 8192, 2560), (flash("m"), 6144, 512), (flash("m"), 5632, 0),
    (pro("m"), 131_072, 123_136 - 123_136 % 512), (flash("m", block_tokens=256), 131_072, 125_440),
])  # fmt: skip
def test_a_replay_of_the_deployed_models_starts_at_the_published_block(made: Layout, hit: int, start: int) -> None:
    found = plan(made, prompt=hit + 1, blocks=hit // made.block_tokens)
    assert (found.hit_tokens, found.start_tokens) == (hit, start)
    assert hit - start >= (made.replay_tokens or 0) or start == 0
    assert hit - start - made.block_tokens < (made.replay_tokens or 0)


def test_the_proof_s_case_starts_at_1280() -> None:
    six_layers: dict[str, Any] = {"layers": 6, "block_tokens": 128, "replay_tokens": 127 * 6}
    made = layout(**six_layers, streams=[history(tokens_per_row=128), window(rows=127)])
    assert plan(made, prompt=2049, blocks=16).start_tokens == 1280


def test_only_true_states_of_a_replay_are_kept() -> None:
    made = layout(replay_tokens=17)
    found = plan(made, prompt=105, blocks=10)
    assert (found.start_tokens, found.true_from_tokens) == (56, 73)
    assert states_to_keep(found, made, Full(), stored=[]) == [80, 88, 96, 104]
    assert states_to_keep(found, made, Full(), stored=[80, 96]) == [88, 104]
    assert states_to_keep(found, made, Periodic(every_tokens=24), stored=[]) == [96]
    assert states_to_keep(found, made, Anchored(), stored=[]) == [80, 104]
    assert states_to_keep(found, made, Zero(), stored=[]) == []


def test_only_true_window_rows_of_a_replay_are_kept() -> None:
    made = layout(replay_tokens=17)
    found = plan(made, prompt=105, blocks=10)
    assert (found.start_tokens, found.true_from_tokens, made.windows[0].rows) == (56, 73, 3)
    assert windows_to_keep(found, made, Full()) == [72, 80, 88, 96]
    longer = layout(replay_tokens=20)
    assert windows_to_keep(plan(longer, prompt=105, blocks=10), longer, Full()) == [80, 88, 96]
    for strategy in (Zero(), Anchored(), Periodic(every_tokens=8)):
        assert windows_to_keep(found, made, strategy) == []


def test_of_windows_of_different_lengths_the_shortest_decides() -> None:
    mixed = layout(replay_tokens=19, streams=[history(), window(rows=3), window(rows=2)])
    assert windows_to_keep(plan(mixed, prompt=105, blocks=10), mixed, Full()) == [80, 88, 96]


def test_after_a_true_state_all_is_true() -> None:
    made = layout(replay_tokens=17)
    found = plan(made, prompt=105, blocks=10, states=[72])
    assert states_to_keep(found, made, Full(), stored=[72]) == [80, 88, 96, 104]
    assert windows_to_keep(found, made, Full()) == [72, 80, 88, 96]


def test_from_zero_all_is_true() -> None:
    made = layout(replay_tokens=17)
    found = plan(made, prompt=24, blocks=0)
    assert states_to_keep(found, made, Full(), stored=[]) == [8, 16, 24]
    assert windows_to_keep(found, made, Full()) == [0, 8, 16]


def test_layouts_without_such_records_keep_none() -> None:
    bare = layout(replay_tokens=0, streams=[history()])
    assert states_to_keep(plan(bare, prompt=24, blocks=0), bare, Full(), stored=[]) == []
    assert windows_to_keep(plan(bare, prompt=24, blocks=0), bare, Full()) == []
    short = layout(streams=[history(), window(rows=8)])
    assert windows_to_keep(plan(short, prompt=24, blocks=0), short, Full()) == []


def test_anchored_keeps_no_second_state_at_a_hit_that_has_one() -> None:
    made = layout()
    assert states_to_keep(plan(made, prompt=41, blocks=3, states=[24]), made, Anchored(), stored=[24]) == [40]
    assert states_to_keep(plan(made, prompt=41, blocks=3, states=[16]), made, Anchored(), stored=[16]) == [24, 40]
    assert states_to_keep(plan(made, prompt=41, blocks=0), made, Anchored(), stored=[]) == [40]
    assert states_to_keep(plan(made, prompt=7, blocks=0), made, Anchored(), stored=[]) == []
