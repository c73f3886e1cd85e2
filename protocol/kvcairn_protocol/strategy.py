"""Strategies: at which positions sliding-window state is kept.

DeepSeek-V4 report §3.5.2 names three (full, periodic, zero); `anchored` keeps state where a prompt left known ground
and at its last complete block. What each costs on real traffic: docs/evidence.md.
Pure: a strategy says what to keep; the plan (plan.py) says what is true and may be kept.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kvcairn_protocol.errors import StrategyError
from kvcairn_protocol.layout import MAX_INTEGER, Layout


class _Strategy(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @property
    def keeps_windows(self) -> bool:
        """Whether the window rows between states are stored as well."""
        return False

    def positions(self, layout: Layout, *, prompt_tokens: int, hit_tokens: int) -> frozenset[int]:
        """The block ends in (0, prompt_tokens] at which a state should stand after this prompt.

        hit_tokens: H = min(longest stored run, usable hit), in tokens.
        """
        raise NotImplementedError


class Full(_Strategy):
    """Every window entry: a state at every block end, and the windows' other rows."""

    kind: Literal["full"] = "full"

    @property
    def keeps_windows(self) -> bool:
        return True

    def positions(self, layout: Layout, *, prompt_tokens: int, hit_tokens: int) -> frozenset[int]:
        step = layout.block_tokens
        return frozenset(range(step, prompt_tokens + 1, step))


class Periodic(_Strategy):
    """A state every `every_tokens` tokens, rounded up to the layout's block."""

    kind: Literal["periodic"] = "periodic"
    every_tokens: Annotated[int, Field(ge=1, le=MAX_INTEGER)]

    def positions(self, layout: Layout, *, prompt_tokens: int, hit_tokens: int) -> frozenset[int]:
        step = -(-self.every_tokens // layout.block_tokens) * layout.block_tokens
        return frozenset(range(step, prompt_tokens + 1, step))


class Zero(_Strategy):
    """No state: every restore replays the last window times layers."""

    kind: Literal["zero"] = "zero"

    def positions(self, layout: Layout, *, prompt_tokens: int, hit_tokens: int) -> frozenset[int]:
        return frozenset()


class Anchored(_Strategy):
    """A state at the hit's end, where the prompt left known ground, and at the prompt's last complete block."""

    kind: Literal["anchored"] = "anchored"

    def positions(self, layout: Layout, *, prompt_tokens: int, hit_tokens: int) -> frozenset[int]:
        last = prompt_tokens // layout.block_tokens * layout.block_tokens
        return frozenset(position for position in (hit_tokens, last) if position)


Strategy = Annotated[Full | Periodic | Zero | Anchored, Field(discriminator="kind")]

StrategyAdapter: TypeAdapter[Full | Periodic | Zero | Anchored] = TypeAdapter(Strategy)


def check_strategy(strategy: Full | Periodic | Zero | Anchored, layout: Layout) -> None:
    """Refuse `zero` for a layout whose state cannot be rebuilt by replay: nothing could ever be restored."""
    if isinstance(strategy, Zero) and layout.replay_tokens is None:
        raise StrategyError(
            "strategy zero needs a layout that can be replayed; this layout has replay_tokens null: "
            "use anchored, periodic or full"
        )
