"""Prefill with a real transformers DeepSeek-V4, restoring whatever prefix is stored, byte for byte.

    with CachedPrefill(model, Client()) as prefill:
        result = prefill(input_ids)
        ids = torch.cat([input_ids, result.logits[:, -1:].argmax(-1)], dim=-1)
        model.generate(ids, cache=result.cache)

Every forward call is exactly one block from position 0 (the last may be shorter), with a service or without one: the
bits depend on how a prompt is cut. Without a service, or with one that is away, this is a plain block-wise prefill.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from transformers import DynamicCache

from kvcairn_client.assemble import assemble, gather_history
from kvcairn_client.background import DEFAULT_BYTES
from kvcairn_client.budgets import Budgets
from kvcairn_client.capture import Capture, WatchedCache, wishes
from kvcairn_client.client import Client
from kvcairn_client.errors import ClosedClient
from kvcairn_client.model_layout import check_model, describe
from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_client.prompt import check_prompt
from kvcairn_client.replay import plain_layers, replay_cache
from kvcairn_client.report import PrefillResult, report_of
from kvcairn_client.restore import Restored, restore
from kvcairn_client.sessions import Pools, Session, snapshot
from kvcairn_client.sidecar import Service, Sidecar, mac_keys_of
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.plan import RestorePlan
from kvcairn_protocol.prefix import block_keys

Progress = Callable[[int, int], None]
"""Called after each forward call with the tokens done and the tokens in all."""

DEFAULT_POOL_BYTES = 1 << 30
DEFAULT_STATE_SLOTS = 64


class CachedPrefill:
    """Prefills prompts for one model, from this process's pools, a service, and computing, in this order.

    No fault of the service reaches the caller: it costs a bounded time (Budgets) and a shorter hit. The model stays the
    caller's: weights and dtypes, adapters' too, must not change while this is in use: they are part of every key.
    Settings that change bits (settings.py: CPU threads, autocast, precisions, adapters turned off, …) may change, but a
    call made under others than those at construction is a plain prefill, which neither reads nor leaves anything.
    Calls from several threads are safe where the model's own are.
    """

    def __init__(  # noqa: PLR0913 - keyword-only options, each with a default
        self,
        model: Any,
        client: Client | Service | str | None = None,
        *,
        model_id: str | None = None,
        block_tokens: int = 512,
        salt: str = "",
        budgets: Budgets | None = None,
        pool_bytes: int = DEFAULT_POOL_BYTES,
        state_slots: int = DEFAULT_STATE_SLOTS,
        queue_bytes: int = DEFAULT_BYTES,
    ) -> None:
        """client: a Client stays the caller's to close; a URL makes one that this closes; None works without a service.

        model_id: names the weights and their revision; without it they are hashed once (see weights.py).
        budgets: of the client made from a URL. pool_bytes, state_slots: the in-process tier, which takes memory only
        as it fills; queue_bytes: what may wait to be stored. Raises ModelNotSupported and LayoutError.
        """
        self._model, self._salt = model, salt
        keys = mac_keys_of(client)
        model_cache = describe(model, model_id=model_id, block_tokens=block_tokens, mac_keys=keys)
        capacity = max(1, pool_bytes // model_cache.layout.payload_bytes(Kind.HISTORY))
        pin = not model_cache.on_host
        blocks = BlockPool(model_cache.layout, capacity_blocks=capacity, pin=pin)
        self._pools = Pools(model_cache, blocks, StatePool(model_cache.slot_layout, slots=state_slots, pin=pin))
        self._sidecar = Sidecar(self._pools, client, budgets=budgets, queue_bytes=queue_bytes, mac_keys=keys)
        self._is_closed = False

    @property
    def layout(self) -> Layout:
        """The layout of this model's records."""
        return self._pools.model_cache.layout

    @property
    def pools(self) -> Pools:
        """The in-process tier."""
        return self._pools

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, *, on_block: Progress | None = None) -> PrefillResult:
        """Prefill one prompt, [1, tokens] of integers, without padding.

        PromptNotSupported for another input; ModelNotSupported if the model was put in training mode meanwhile.
        """
        if self._is_closed:
            raise ClosedClient("this prefill is closed: make a new one")
        started = time.perf_counter()
        check_model(self._model)
        tokens = check_prompt(input_ids, vocab_size=self._model.config.vocab_size)
        keys, service = block_keys(self.layout, tokens, salt=self._salt), self._sidecar.source()
        if self._pools.model_cache.settings.have_changed():
            # Its blocks will have other bits than these keys stand for. Without keys nothing is found, kept or shared.
            keys, service = [], None
        restored = restore(self._pools, service, keys, prompt_tokens=len(tokens))
        try:
            cache = self._starting_cache(restored)
            self._sidecar.report_use(keys, restored)
            computing = time.perf_counter()
            offers = self._sidecar.offers(keys, restored)
            capture = Capture(self._pools, restored, wishes(restored, self._pools, self._sidecar.strategy), offers)
            ids = torch.from_numpy(tokens)[None].to(self._model.device)
            logits = self._compute(ids, cache, restored.plan, capture, on_block)
        finally:
            restored.loaded.release()
        report = report_of(
            restored,
            block_tokens=self.layout.block_tokens,
            bytes_offered=offers.bytes_offered,
            restore_seconds=computing - started,
            compute_seconds=time.perf_counter() - computing,
        )
        return PrefillResult(cache=self._plain(cache.layers), logits=logits, report=report, block_keys=capture.keys)

    def snapshot(self, cache: DynamicCache, *, block_keys: Sequence[bytes] = ()) -> Session:
        """Keep a live cache in the pools, at whatever position it stands; `Session.restore` gives it back.

        block_keys: a result's, for a cache that grew from it; the blocks that decoding completed stay unshared.
        PoolExhausted where other sessions hold too many rows.
        """
        return snapshot(self._pools, cache, keys=block_keys)

    def flush(self, timeout_seconds: float = 60.0) -> bool:
        """Wait until everything captured so far is stored or given up; False if the time ran out first."""
        return self._sidecar.flush(timeout_seconds)

    def close(self) -> None:
        """Store what still waits, within a bound, then stop. A second close does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._sidecar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _starting_cache(self, restored: Restored) -> WatchedCache:
        """The cache at the plan's start: replaying, from a state, or empty."""
        plan, pools = restored.plan, self._pools
        blocks = restored.loaded.blocks[: plan.load_tokens // self.layout.block_tokens]
        cache = DynamicCache(config=self._model.config)
        if plan.is_replay:
            history = gather_history(pools.model_cache, pools.blocks, blocks, tokens=plan.hit_tokens)
            cache = replay_cache(pools.model_cache, history, start=plan.start_tokens)
        elif restored.loaded.slot is not None:
            cache = assemble(
                pools.model_cache, pools.blocks, blocks, pools.states, restored.loaded.slot, position=plan.start_tokens
            )
        return WatchedCache(self._model.config, cache.layers)

    def _compute(
        self, ids: torch.Tensor, cache: WatchedCache, plan: RestorePlan, capture: Capture, on_block: Progress | None
    ) -> torch.Tensor:
        """Run the plan's forward calls; returns every row of the last one's logits."""
        total, step = plan.prompt_tokens, self.layout.block_tokens
        for start in range(plan.start_tokens, total, step):
            stop = min(total, start + step)
            output = self._model(
                input_ids=ids[:, start:stop],
                position_ids=torch.arange(start, stop, device=ids.device)[None],
                cache=cache,
                use_cache=True,
                return_dict=True,
                logits_to_keep=0 if stop == total else 1,
            )
            if plan.is_replay and stop == plan.hit_tokens:
                cache.layers = plain_layers(self._pools.model_cache, cache.layers)
            capture.after(cache, range(start, stop))
            if on_block is not None:
                on_block(stop, total)
        logits: torch.Tensor = output.logits
        return logits

    def _plain(self, layers: Sequence[Any]) -> DynamicCache:
        cache = DynamicCache(config=self._model.config)
        cache.layers = list(layers)
        return cache
