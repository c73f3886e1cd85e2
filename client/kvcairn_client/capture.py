"""Capture: after each whole block of a run, its history, and the state and window rows where they are true."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from kvcairn_client.cache_rows import as_bytes, history_payload, state_payload
from kvcairn_client.persist import Offers
from kvcairn_client.restore import Restored
from kvcairn_client.sessions import Pools
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.mac import is_authenticated
from kvcairn_protocol.plan import states_to_keep, windows_to_keep
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero

_log = logging.getLogger(__name__)


class WatchedCache(DynamicCache):
    """A DynamicCache that remembers the window rows of the last forward call, [tokens, dim] by layer.

    Its layers keep only the last rows of a window; strategy full stores the others, too.
    """

    def __init__(self, config: Any, layers: Sequence[Any]) -> None:
        super().__init__(config=config)
        self.layers = list(layers)
        self.call_rows: dict[int, torch.Tensor] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As in DynamicCache."""
        self.call_rows[layer_idx] = key_states[0, 0]
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What one run captures: states at block ends, window rows of blocks by their starts."""

    states: frozenset[int]
    windows: frozenset[int]


def wishes(restored: Restored, pools: Pools, strategy: Full | Periodic | Zero | Anchored) -> Wishes:
    """What a run of this plan may capture under the strategy; see kvcairn_protocol.plan for what is true."""
    layout = pools.model_cache.layout
    # Window records have no room for a MAC; a restore reads none of them.
    windows = () if is_authenticated(layout) else windows_to_keep(restored.plan, layout, strategy)
    return Wishes(
        states=frozenset(states_to_keep(restored.plan, layout, strategy, stored=())),
        windows=frozenset(windows),
    )


class Capture:
    """One run's capture: into the pools at once, and among the offers to the service. Holds what it publishes.

    keys: of the run's blocks, as far as they are what the keys stand for. Nothing behind them is captured.
    """

    def __init__(self, pools: Pools, restored: Restored, wished: Wishes, offers: Offers) -> None:
        self._pools, self._held, self._wished, self._offers = pools, restored.loaded.blocks, wished, offers
        self._layout = pools.model_cache.layout
        self.keys = offers.keys

    def after(self, cache: WatchedCache, tokens: range) -> None:
        """Take what the block of `tokens`, which the last forward call computed, is worth keeping.

        A failure, or a setting that changed meanwhile, costs the capture from here on, never the prefill.
        """
        index = tokens.start // self._layout.block_tokens
        if index >= len(self.keys):
            return
        try:
            if not self._pools.model_cache.settings.have_changed():
                self._take(cache, index, tokens)
                return
        except Exception:
            _log.exception("capturing failed at token %d: nothing behind it is kept", tokens.start)
        self.keys = self.keys[:index]

    def _take(self, cache: WatchedCache, index: int, tokens: range) -> None:
        if index >= len(self._held) or self._offers.is_new_block(index):
            self._take_block(cache, index, tokens)
        if tokens.start in self._wished.windows:
            self._offers.add(Kind.WINDOW, index, self._window_rows(cache))
        if tokens.stop in self._wished.states:
            self._take_state(cache, index)

    def _take_block(self, cache: WatchedCache, index: int, tokens: range) -> None:
        payload = history_payload(self._layout.segments(Kind.HISTORY), cache.layers, tokens)
        if index == len(self._held):
            row = self._pools.blocks.take_filled(lambda target: target.copy_(payload))
            if row is not None:
                self._held.append(self._pools.blocks.publish_block(row, self._offers.keys, index=index))
        if self._offers.is_new_block(index):
            self._offers.add(Kind.HISTORY, index, payload)

    def _take_state(self, cache: WatchedCache, index: int) -> None:
        slots, segments = self._pools.states, self._pools.model_cache.slot_layout.segments(Kind.STATE)
        slot = torch.empty_like(slots.bytes[0])
        state_payload(segments, cache.layers, slot)
        row = slots.take_filled(lambda target: target.copy_(slot))
        if row is not None:
            slots.release(slots.publish(row, self._offers.keys[index]))
        if self._offers.is_new_state(index):
            self._offers.add(Kind.STATE, index, slot[: self._layout.payload_bytes(Kind.STATE)])

    def _window_rows(self, cache: WatchedCache) -> torch.Tensor:
        segments = self._layout.segments(Kind.WINDOW)
        return torch.cat([as_bytes(cache.call_rows[part.stream.layer][: part.rows]) for part in segments])
