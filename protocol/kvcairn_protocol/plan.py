"""The restore plan: what to load, where computing starts, and where state may be captured.

Pure: a function of the prompt's length, what is stored, and the layout. Two ways back (docs/architecture.md):
from a true state at s, load history [0, s) and compute [s, n) as ordinary prefill; or, without a state, load history
[0, hit) and replay from a block boundary at least `replay_tokens` before the hit, reading the stored entries and never
overwriting them. Whichever starts later wins; a plan never covers the whole prompt (else there were no logits).
"""

from collections.abc import Collection
from dataclasses import dataclass

from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """All positions are in tokens, from the prompt's start.

    prompt_tokens: n. hit_tokens: the usable stored run. start_tokens: where the engine's forward calls begin.
    load_tokens: history [0, load_tokens) is loaded; start_tokens where a state is loaded, hit_tokens where replaying.
    state_tokens: the position of the state to load; None: none is loaded, which at start 0 is the empty state.
    true_from_tokens: state captured at or after this position is true; window rows likewise (see `window_is_true`).
    """

    prompt_tokens: int
    hit_tokens: int
    start_tokens: int
    load_tokens: int
    state_tokens: int | None
    true_from_tokens: int

    @property
    def is_replay(self) -> bool:
        """Whether [start, hit) must be run with layers that read the stored entries and never overwrite them."""
        return self.load_tokens > self.start_tokens

    @property
    def replayed_tokens(self) -> int:
        """Tokens whose entries are stored and that are run again all the same."""
        return max(0, self.hit_tokens - self.start_tokens)

    @property
    def computed_tokens(self) -> int:
        """Tokens beyond the hit."""
        return self.prompt_tokens - self.hit_tokens

    def state_is_true(self, position: int) -> bool:
        """Whether the state that this run holds at `position` is what an uninterrupted run would hold."""
        return self.start_tokens < position and self.true_from_tokens <= position

    def window_is_true(self, layout: Layout, block_start: int) -> bool:
        """Whether the window rows of the block from `block_start` on are true.

        A row depends on fewer earlier tokens than a whole state does, by the rows that the state itself holds.
        """
        if not self.is_replay:
            return self.start_tokens <= block_start
        rows = min((stream.rows for stream in layout.windows), default=0)
        return self.true_from_tokens - rows <= block_start and self.start_tokens <= block_start


def usable_tokens(layout: Layout, prompt_tokens: int) -> int:
    """The longest hit that leaves at least one token to compute: floor((n − 1) / block) · block."""
    return max(0, prompt_tokens - 1) // layout.block_tokens * layout.block_tokens


def plan_restore(
    layout: Layout, *, prompt_tokens: int, history_blocks: int, state_tokens: Collection[int]
) -> RestorePlan:
    """Plan the restore that starts latest.

    history_blocks: the longest run of stored history blocks from the first. state_tokens: positions of stored states,
    in any order; those outside the run, or not at a block end, are ignored. Ask again with what is left when a load
    falls short: the plan then falls back to an earlier state, to replay, or to a shorter hit.
    """
    block = layout.block_tokens
    hit = min(history_blocks * block, usable_tokens(layout, prompt_tokens))
    state = max((s for s in state_tokens if 0 < s <= hit and s % block == 0), default=0)
    replay = _replay_start(layout, hit)
    if replay > state:
        return RestorePlan(
            prompt_tokens=prompt_tokens, hit_tokens=hit, start_tokens=replay, load_tokens=hit, state_tokens=None,
            true_from_tokens=replay + (layout.replay_tokens or 0),
        )  # fmt: skip
    return RestorePlan(
        prompt_tokens=prompt_tokens, hit_tokens=hit, start_tokens=state, load_tokens=state,
        state_tokens=state if state and layout.has_state else None, true_from_tokens=state,
    )  # fmt: skip


def _replay_start(layout: Layout, hit_tokens: int) -> int:
    """Where a replay starts so that the state at the hit is true: at a block end, where the original was cut, too.

    No state is rebuilt by replaying nothing: a layout that has one and says 0 is taken for one that says null.
    """
    if layout.replay_tokens is None or (layout.has_state and not layout.replay_tokens):
        return 0
    return max(0, (hit_tokens - layout.replay_tokens) // layout.block_tokens * layout.block_tokens)


def states_to_keep(
    plan: RestorePlan,
    layout: Layout,
    strategy: Full | Periodic | Zero | Anchored,
    *,
    stored: Collection[int],
) -> list[int]:
    """Positions at which this run should capture a state, ascending: wanted, true, and not stored yet."""
    wanted = strategy.positions(layout, prompt_tokens=plan.prompt_tokens, hit_tokens=plan.hit_tokens)
    if not layout.has_state:
        return []
    return sorted(p for p in wanted if p not in stored and plan.state_is_true(p))


def windows_to_keep(plan: RestorePlan, layout: Layout, strategy: Full | Periodic | Zero | Anchored) -> list[int]:
    """Starts of the blocks whose window rows this run should capture, ascending."""
    if not strategy.keeps_windows or not layout.payload_bytes(Kind.WINDOW):
        return []
    ends = range(layout.block_tokens, plan.prompt_tokens + 1, layout.block_tokens)
    starts = (end - layout.block_tokens for end in ends)
    return [start for start in starts if plan.window_is_true(layout, start)]
