"""The engine's side of a replay: for each prompt, look up, plan, fetch what the plan loads, store what is new.

What to load, what to keep and where is decided by the plan and the strategies of the protocol, as in a client; the
engine has no pools of its own. One prompt is finished before the next one comes. Outputs are not in the trace, so that
only prompts are stored.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from benchmarks.trace_data import Prompt
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.plan import RestorePlan, plan_restore, states_to_keep, windows_to_keep
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero

Strategy = Anchored | Full | Periodic | Zero


class Piece(NamedTuple):
    """One record of a prompt: a block, the state at its end, or the other window rows of it."""

    kind: Kind
    block: int


class Found(Protocol):
    """A lookup's answer: the run, in blocks, and the positions of the states inside it."""

    @property
    def history_blocks(self) -> int: ...

    @property
    def state_tokens(self) -> Sequence[int]: ...


class Cache(Protocol):
    """What is replayed into. Pieces are named by a prompt's keys; each method returns when it has happened."""

    def look_up(self, keys: Sequence[bytes]) -> Found: ...

    def fetch(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> None:
        """Read these, which counts as a use; raises where one of them is gone."""
        ...

    def store(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> None:
        """Store these, which are not there; raises where one of them is refused."""
        ...


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of a replay. hit_blocks: of the runs that lookups found; asked_blocks: all complete blocks.

    hit_tokens: of the plans, at least one short of the prompt; replayed_tokens: of these, what is run again.
    loaded_states: plans that started from a stored state.
    """

    prompts: int = 0
    asked_blocks: int = 0
    hit_blocks: int = 0
    hit_tokens: int = 0
    replayed_tokens: int = 0
    loaded_states: int = 0
    stored_blocks: int = 0
    stored_states: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of all complete blocks that was there when its prompt came."""
        return self.hit_blocks / self.asked_blocks

    @property
    def replayed_share(self) -> float:
        """The share of the hit tokens that must be run again for want of a state."""
        return self.replayed_tokens / max(1, self.hit_tokens)

    def count(self, prompt: Prompt, found: Found, plan: RestorePlan, new: Sequence[Piece]) -> None:
        kinds = [piece.kind for piece in new]
        self.prompts += 1
        self.asked_blocks += len(prompt.block_ids)
        self.hit_blocks += found.history_blocks
        self.hit_tokens += plan.hit_tokens
        self.replayed_tokens += plan.replayed_tokens
        self.loaded_states += plan.state_tokens is not None
        self.stored_blocks += kinds.count(Kind.HISTORY)
        self.stored_states += kinds.count(Kind.STATE)


def replay(
    prompts: Sequence[Prompt],
    chains: Iterable[Sequence[bytes]],
    cache: Cache,
    *,
    layout: Layout,
    strategy: Strategy,
    set_clock: Callable[[float], None] | None = None,
) -> Tally:
    """Send every prompt through `cache`. chains: each prompt's keys. set_clock: told the seconds of each prompt."""
    tally = Tally()
    for prompt, keys in zip(prompts, chains, strict=True):
        if set_clock is not None:
            set_clock(prompt.seconds)
        found = cache.look_up(keys)
        plan = plan_restore(
            layout,
            prompt_tokens=prompt.tokens,
            history_blocks=found.history_blocks,
            state_tokens=found.state_tokens,
        )
        if loaded := pieces_to_load(plan, layout):
            cache.fetch(keys, loaded)
        if new := pieces_to_store(plan, layout, strategy, found, blocks=len(keys)):
            cache.store(keys, new)
        tally.count(prompt, found, plan, new)
    return tally


def pieces_to_load(plan: RestorePlan, layout: Layout) -> list[Piece]:
    """What a plan reads: its history, and its state if there is one."""
    pieces = [Piece(Kind.HISTORY, block) for block in range(plan.load_tokens // layout.block_tokens)]
    if plan.state_tokens is not None:
        pieces.append(Piece(Kind.STATE, plan.state_tokens // layout.block_tokens - 1))
    return pieces


def pieces_to_store(plan: RestorePlan, layout: Layout, strategy: Strategy, found: Found, *, blocks: int) -> list[Piece]:
    """What a run of this plan makes that is not stored, in the order in which it is captured: block by block."""
    states = states_to_keep(plan, layout, strategy, stored=found.state_tokens)
    new = [Piece(Kind.HISTORY, block) for block in range(found.history_blocks, blocks)]
    new += [Piece(Kind.WINDOW, start // layout.block_tokens) for start in windows_to_keep(plan, layout, strategy)]
    new += [Piece(Kind.STATE, position // layout.block_tokens - 1) for position in states]
    return sorted((piece for piece in new if piece.block < blocks), key=_captured)


def _captured(piece: Piece) -> tuple[int, int]:
    """A run captures a block's history, then its window rows, then the state at its end."""
    return piece.block, (Kind.HISTORY, Kind.WINDOW, Kind.STATE).index(piece.kind)
