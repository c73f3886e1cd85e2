"""Why a replay is what it is: each shortcut gives other bits, and the comparison sees them."""

import copy
from typing import Any

import pytest
import torch
from transformers import DeepseekV4ForCausalLM, DynamicCache
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache, DeepseekV4HCACache

from kvcairn_client.model_layout import ModelCache, describe
from kvcairn_client.replay import plain_layers, replay_cache
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.plan import plan_restore
from kvcairn_protocol.strategy import Zero
from memory_service import MemoryService
from tiny_models import RATIOS, Oracle, differences, feed, make_config, make_model, make_prompt, same_bits

HIT, STEP = 2048, 128
PROMPT = make_prompt(HIT + 41)
FLOATS = (torch.float32, torch.bfloat16)


class Stored:
    """A run up to the hit, its compressed entries, and where an uninterrupted run is after the suffix."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.model: Any = make_model(RATIOS, dtype)
        self.model_cache: ModelCache = describe(self.model, model_id="tiny", block_tokens=STEP)
        oracle = Oracle(self.model, step=STEP)
        self.at_hit, _ = oracle.run(PROMPT[:, :HIT])
        self.right = oracle.run(PROMPT)

    @property
    def history(self) -> list[dict[str, torch.Tensor]]:
        return [dict(getattr(layer, "compressed_kv", {})) for layer in self.at_hit.layers]

    def resumes(self, cache: DynamicCache) -> bool:
        """Whether the suffix, run from a copy of this cache, ends where the uninterrupted run does."""
        continued = copy.deepcopy(cache)
        logits = feed(self.model, PROMPT, continued, start=HIT, step=STEP)
        return same_bits(logits, self.right[1]) and differences(continued, self.right[0]) == []

    def replayed(self, start: int) -> DynamicCache:
        cache = replay_cache(self.model_cache, self.history, start=start)
        feed(self.model, PROMPT[:, :HIT], cache, start=start, step=STEP)
        cache.layers = plain_layers(self.model_cache, cache.layers)
        return cache


@pytest.fixture(scope="module", params=FLOATS, ids=str)
def stored(request: pytest.FixtureRequest) -> Stored:
    return Stored(request.param)


def test_the_planned_replay_is_exact(stored: Stored) -> None:
    plan = plan_restore(
        stored.model_cache.layout, prompt_tokens=PROMPT.shape[1], history_blocks=HIT // STEP, state_tokens=()
    )
    assert (plan.hit_tokens, plan.start_tokens) == (HIT, 1280)
    cache = stored.replayed(plan.start_tokens)
    assert differences(cache, stored.at_hit) == []
    assert stored.resumes(cache)


@pytest.mark.parametrize("start", [1408, 1536])
def test_a_replay_that_is_too_short_is_not(stored: Stored, start: int) -> None:
    assert not stored.resumes(stored.replayed(start))


def test_a_replay_that_overwrites_the_entries_is_not(stored: Stored) -> None:
    cache = replay_cache(stored.model_cache, stored.history, start=1280)
    cache.layers = plain_layers(stored.model_cache, cache.layers)
    feed(stored.model, PROMPT[:, :HIT], cache, start=1280, step=STEP)
    assert not stored.resumes(cache)


def test_a_state_without_the_overlap_rows_is_not(stored: Stored) -> None:
    assert stored.resumes(stored.at_hit)
    for compressor in ("compressor", "indexer"):
        cache = copy.deepcopy(stored.at_hit)
        for layer in cache.layers:
            if isinstance(layer, DeepseekV4CSACache):
                layer.overlap_kv[compressor] = layer.overlap_gate[compressor] = None
        assert not stored.resumes(cache), compressor


def test_a_state_without_the_oldest_row_of_a_window_is_not(stored: Stored) -> None:
    """127 rows are needed: bits of the first one reach the next token."""
    cache = copy.deepcopy(stored.at_hit)
    cache.layers[0].keys = cache.layers[0].values = cache.layers[0].keys.clone()
    cache.layers[0].keys[:, :, 0] = 0
    assert not stored.resumes(cache)


def test_other_cuts_give_other_bits(stored: Stored) -> None:
    cache = DynamicCache(config=stored.model.config)
    feed(stored.model, PROMPT[:, :HIT], cache, start=0, step=2 * STEP)
    assert differences(cache, stored.at_hit) != []


def test_a_replay_leaves_the_stored_entries_and_the_layer_registry_alone(stored: Stored) -> None:
    before = copy.deepcopy(stored.history)
    stored.replayed(1280)
    assert all(
        same_bits(tensor, other[name])
        for layer, other in zip(stored.history, before, strict=True)
        for name, tensor in layer.items()
    )
    kinds = {type(layer) for layer in DynamicCache(config=stored.model.config).layers}
    assert {DeepseekV4CSACache, DeepseekV4HCACache} < kinds


@pytest.mark.parametrize(("csa", "hca", "window", "block"), [(32, 32, 4, 32), (32, 64, 8, 64), (8, 16, 4, 16)])
def test_overlap_rows_that_reach_further_back_than_the_window_are_rebuilt_too(
    csa: int, hca: int, window: int, block: int
) -> None:
    torch.manual_seed(0)
    rates = {"compressed_sparse_attention": csa, "heavily_compressed_attention": hca}
    model = DeepseekV4ForCausalLM(make_config(RATIOS, sliding_window=window, compress_rates=rates)).eval()
    oracle = Oracle(model, step=block)
    for tokens in (100, 130, 200, 257, 400):
        service, prompt = MemoryService(Zero()), make_prompt(tokens)
        for _ in range(2):
            with CachedPrefill(model, service, model_id="tiny", block_tokens=block) as prefill:
                result = prefill(prompt)
                assert prefill.flush()
        cache, logits = oracle.run(prompt)
        assert same_bits(result.logits, logits)
        assert differences(result.cache, cache) == []
    assert 0 < result.report.replayed_tokens < result.report.hit_tokens
