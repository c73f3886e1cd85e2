"""Plans at work: a simulated engine that knows which of its rows are true, and a dict as the store.

The engine follows the architecture and nothing of plan.py: the entry of token t in layer l is true where the entries of
the `reach` tokens up to t in the layer below are, and a run that starts at r without a state lacks all rows before r.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcairn_protocol.codec import Encoded
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.plan import RestorePlan, plan_restore, states_to_keep, usable_tokens, windows_to_keep
from kvcairn_protocol.prefix import block_keys, parent_of
from kvcairn_protocol.record import encode_record, verify_record
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero
from protocol_samples import history, layout, window

BLOCK = 8
Strategy = Full | Periodic | Zero | Anchored
STRATEGIES = st.sampled_from([Full(), Periodic(every_tokens=8), Periodic(every_tokens=24), Zero(), Anchored()])


@dataclass(frozen=True)
class Model:
    """A model whose tokens see the `reach` tokens up to themselves in each of `layers` layers; windows keep `rows`."""

    layers: int
    reach: int
    rows: int

    @property
    def replay_tokens(self) -> int:
        return (self.layers - 1) * (self.reach - 1) + self.rows

    def layout(self) -> Layout:
        windows = [window(layer=layer, rows=self.rows) for layer in range(self.layers)]
        streams = [history(tokens_per_row=8), *windows]
        return layout(layers=self.layers, replay_tokens=self.replay_tokens, streams=streams)

    def true_rows(self, *, start: int, end: int, has_state: bool) -> list[list[bool]]:
        """By layer and token: whether the window row is what an uninterrupted run holds."""
        known = has_state or start == 0
        rows = []
        inputs = [known or token >= start for token in range(end)]
        for _ in range(self.layers):
            rows.append(inputs)
            inputs = [known or (t >= start and all(inputs[max(0, t - self.reach + 1) : t + 1])) for t in range(end)]
        return rows

    def state_is_true(self, rows: list[list[bool]], position: int) -> bool:
        return all(all(layer[max(0, position - self.rows) : position]) for layer in rows)

    def windows_are_true(self, rows: list[list[bool]], start: int) -> bool:
        return all(all(layer[start : start + BLOCK - self.rows]) for layer in rows)


MODELS = st.builds(
    lambda layers, reach, spare: Model(layers=layers, reach=reach, rows=reach - spare),
    st.integers(1, 4), st.integers(2, 7), st.integers(0, 1),
)  # fmt: skip


@given(MODELS, st.integers(1, 90), st.integers(0, 11), st.sets(st.integers(0, 11).map(lambda b: b * BLOCK)), STRATEGIES)
def test_exactly_the_true_states_and_windows_are_kept(
    model: Model, prompt: int, blocks: int, states: set[int], strategy: Strategy
) -> None:
    made = model.layout()
    plan = plan_restore(made, prompt_tokens=prompt, history_blocks=blocks, state_tokens=states)
    rows = model.true_rows(start=plan.start_tokens, end=prompt, has_state=plan.state_tokens is not None)
    assert model.state_is_true(rows, plan.hit_tokens), "what the tail is computed from must be true"
    wanted = strategy.positions(made, prompt_tokens=prompt, hit_tokens=plan.hit_tokens)
    true = [p for p in sorted(wanted) if p > plan.start_tokens and model.state_is_true(rows, p)]
    assert states_to_keep(plan, made, strategy, stored=()) == true
    starts = range(plan.start_tokens, prompt - BLOCK + 1, BLOCK)
    kept = [s for s in starts if strategy.keeps_windows and model.windows_are_true(rows, s)]
    assert windows_to_keep(plan, made, strategy) == kept


@given(MODELS, st.integers(2, 12))
def test_a_replay_one_block_later_would_be_untrue(model: Model, blocks: int) -> None:
    made = model.layout()
    plan = plan_restore(made, prompt_tokens=blocks * BLOCK + 1, history_blocks=blocks, state_tokens=())
    later = plan.start_tokens + BLOCK
    if later < plan.hit_tokens:
        rows = model.true_rows(start=later, end=plan.hit_tokens, has_state=False)
        assert not model.state_is_true(rows, plan.hit_tokens)


@dataclass
class World:
    """A writer that is also the reader: one layout, and records in a dict, keyed as the service keys them."""

    made: Layout
    records: dict[tuple[Kind, bytes], bytes] = field(default_factory=dict)

    def put(self, kind: Kind, keys: list[bytes], block: int) -> None:
        payload = Encoded(0, bytes(self.made.payload_bytes(kind)), self.made.payload_bytes(kind))
        head, body = encode_record(
            self.made, kind, key=keys[block], position=(block + 1) * BLOCK, parent=parent_of(keys, block),
            payload=payload,
        )  # fmt: skip
        self.records.setdefault((kind, keys[block]), head + bytes(body))

    def lookup(self, tokens: list[int]) -> tuple[int, list[int]]:
        """The longest run from the first key, and the positions of the states inside it, as their headers tell."""
        keys = block_keys(self.made, tokens)
        run = next((i for i, key in enumerate(keys) if (Kind.HISTORY, key) not in self.records), len(keys))
        states = [self.records[Kind.STATE, key] for key in keys[:run] if (Kind.STATE, key) in self.records]
        return run, [verify_record(r, self.made, max_raw_bytes=1000).position for r in states]

    def prefill(self, tokens: list[int], strategy: Strategy) -> RestorePlan:
        """Restore what is there, then store all that the strategy keeps."""
        run, states = self.lookup(tokens)
        plan = plan_restore(self.made, prompt_tokens=len(tokens), history_blocks=run, state_tokens=states)
        keys = block_keys(self.made, tokens)
        for block in range(run, len(keys)):
            self.put(Kind.HISTORY, keys, block)
        for position in states_to_keep(plan, self.made, strategy, stored=states):
            self.put(Kind.STATE, keys, position // BLOCK - 1)
        for start in windows_to_keep(plan, self.made, strategy):
            self.put(Kind.WINDOW, keys, start // BLOCK)
        return plan


TINY = Model(layers=2, reach=4, rows=3)
PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=60)


@given(PROMPT, PROMPT, STRATEGIES)
def test_all_that_was_stored_is_found(tokens: list[int], more: list[int], strategy: Strategy) -> None:
    world = World(TINY.layout())
    world.prefill(tokens, strategy)
    stored = {kind: [key for k, key in world.records if k == kind] for kind in Kind}
    run, states = world.lookup(tokens + more)
    assert run >= len(tokens) // BLOCK == len(stored[Kind.HISTORY])
    assert len(states) == len(stored[Kind.STATE])
    assert set(states) == set(strategy.positions(world.made, prompt_tokens=len(tokens), hit_tokens=0))
    assert len(stored[Kind.WINDOW]) == (len(tokens) // BLOCK if strategy.keeps_windows else 0)


@given(st.lists(st.tuples(PROMPT, STRATEGIES), max_size=8))
@settings(max_examples=60)
def test_every_prompt_is_wholly_found_afterwards_whatever_came_before(runs: list[tuple[list[int], Strategy]]) -> None:
    world = World(TINY.layout())
    for tokens, strategy in runs:
        world.prefill(tokens, strategy)
        run, _ = world.lookup(tokens)
        assert run == len(tokens) // BLOCK
        again = world.prefill(tokens, strategy)
        assert again.hit_tokens == usable_tokens(world.made, len(tokens))


@given(PROMPT, PROMPT)
def test_after_anchored_the_next_turn_replays_nothing(tokens: list[int], more: list[int]) -> None:
    world = World(TINY.layout())
    world.prefill(tokens, Anchored())
    plan = world.prefill(tokens + more, Anchored())
    assert plan.start_tokens == plan.hit_tokens >= len(tokens) // BLOCK * BLOCK - (not more) * BLOCK


@given(PROMPT, PROMPT, PROMPT)
def test_after_anchored_met_a_branch_the_third_prompt_replays_nothing_there(
    common: list[int], left: list[int], right: list[int]
) -> None:
    world = World(TINY.layout())
    world.prefill(common + left, Anchored())
    first = world.prefill(common + right, Anchored())
    again = world.prefill(common + right, Anchored())
    assert again.start_tokens >= first.hit_tokens


@pytest.mark.parametrize("tokens", range(1, 4 * BLOCK + 2))
def test_writer_and_reader_agree_on_every_prompt_around_block_ends(tokens: int) -> None:
    world = World(TINY.layout())
    prompt = list(range(tokens))
    assert world.prefill(prompt, Anchored()).hit_tokens == 0
    same, longer = (plan_of(world, prompt + tail) for tail in ([], [99]))
    assert (same.hit_tokens, longer.hit_tokens) == ((tokens - 1) // BLOCK * BLOCK, tokens // BLOCK * BLOCK)
    assert longer.start_tokens == longer.hit_tokens
    assert longer.state_tokens == (tokens // BLOCK * BLOCK or None)


def plan_of(world: World, tokens: list[int]) -> RestorePlan:
    run, states = world.lookup(tokens)
    return plan_restore(world.made, prompt_tokens=len(tokens), history_blocks=run, state_tokens=states)
