"""Strategies: the positions that each wants, and their JSON forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvcairn_protocol.errors import StrategyError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.strategy import Anchored, Full, Periodic, StrategyAdapter, Zero, check_strategy
from protocol_samples import history, layout, window

BLOCK = 8
PROMPTS = st.integers(0, 200)
HITS = st.integers(0, 20).map(lambda blocks: blocks * BLOCK)


def positions(strategy: Full | Periodic | Zero | Anchored, *, prompt: int, hit: int = 0) -> list[int]:
    return sorted(strategy.positions(layout(), prompt_tokens=prompt, hit_tokens=hit))


@given(PROMPTS, HITS)
def test_full_wants_every_block_end(prompt: int, hit: int) -> None:
    assert positions(Full(), prompt=prompt, hit=hit) == [p for p in range(1, prompt + 1) if p % BLOCK == 0]


@given(PROMPTS, HITS, st.integers(1, 60))
def test_periodic_wants_every_so_many_tokens_rounded_up_to_the_block(prompt: int, hit: int, every: int) -> None:
    step = next(step for step in range(every, every + BLOCK) if step % BLOCK == 0)
    wanted = [p for p in range(1, prompt + 1) if p % step == 0]
    assert positions(Periodic(every_tokens=every), prompt=prompt, hit=hit) == wanted


@given(PROMPTS)
def test_periodic_of_a_block_wants_what_full_wants(prompt: int) -> None:
    assert positions(Periodic(every_tokens=1), prompt=prompt) == positions(Full(), prompt=prompt)


@given(PROMPTS, HITS)
def test_zero_wants_nothing(prompt: int, hit: int) -> None:
    assert positions(Zero(), prompt=prompt, hit=hit) == []


@pytest.mark.parametrize(("prompt", "hit", "wanted"), [
    (0, 0, []), (7, 0, []), (8, 0, [8]), (9, 0, [8]), (15, 8, [8]), (16, 8, [8, 16]), (40, 16, [16, 40]),
    (41, 40, [40]), (47, 40, [40]), (48, 40, [40, 48]),
])  # fmt: skip
def test_anchored_wants_the_hit_and_the_last_complete_block(prompt: int, hit: int, wanted: list[int]) -> None:
    assert positions(Anchored(), prompt=prompt, hit=hit) == wanted


def test_only_full_keeps_window_rows_between_states() -> None:
    assert [s.keeps_windows for s in (Full(), Periodic(every_tokens=8), Zero(), Anchored())] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(("strategy", "text"), [
    (Full(), '{"kind":"full"}'),
    (Periodic(every_tokens=4096), '{"kind":"periodic","every_tokens":4096}'),
    (Periodic(every_tokens=2**53 - 1), '{"kind":"periodic","every_tokens":9007199254740991}'),
    (Zero(), '{"kind":"zero"}'),
    (Anchored(), '{"kind":"anchored"}'),
])  # fmt: skip
def test_each_strategy_has_one_form_in_json(strategy: Full | Periodic | Zero | Anchored, text: str) -> None:
    assert StrategyAdapter.dump_json(strategy).decode() == text
    assert StrategyAdapter.validate_json(text) == strategy


@pytest.mark.parametrize("text", [
    "{}", "null", '"full"', '{"kind":"Full"}', '{"kind":"none"}', '{"kind":"full","every_tokens":8}',
    '{"kind":"anchored","x":1}', '{"kind":"periodic"}', '{"kind":"periodic","every_tokens":0}',
    '{"kind":"periodic","every_tokens":-8}', '{"kind":"periodic","every_tokens":8.0}',
    '{"kind":"periodic","every_tokens":"8"}', '{"kind":"periodic","every_tokens":true}',
    '{"kind":"periodic","every_tokens":9007199254740992}', '{"kind":"periodic","every_tokens":null}',
])  # fmt: skip
def test_any_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        StrategyAdapter.validate_json(text)


def test_zero_is_refused_where_nothing_can_be_replayed() -> None:
    ssm: Layout = layout(replay_tokens=None, streams=[history(), window()])
    with pytest.raises(StrategyError, match="use anchored, periodic or full"):
        check_strategy(Zero(), ssm)
    for strategy in (Full(), Periodic(every_tokens=8), Anchored()):
        check_strategy(strategy, ssm)
    check_strategy(Zero(), layout())
    check_strategy(Zero(), layout(replay_tokens=0, streams=[history()]))
