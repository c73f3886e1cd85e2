"""What capturing and snapshots do with a cache that is not what the layout says: no row is lost, no prefill fails."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DeepseekV4ForCausalLM

from kvcairn_client.errors import ModelNotSupported
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.strategy import Full
from memory_service import MemoryService
from tiny_models import RATIOS, make_config, make_prompt, same_bits, uninterrupted

STEP = 128


def one_entry_short(layer: Any) -> None:
    layer.compressed_kv["compressor"] = layer.compressed_kv["compressor"][:, :-1]


def another_dtype(layer: Any) -> None:
    layer.compressed_kv["compressor"] = layer.compressed_kv["compressor"].double()


def too_many_window_rows(layer: Any) -> None:
    layer.keys = layer.values = layer.keys.repeat(1, 1, 9, 1)


SPOILERS = [one_entry_short, another_dtype, too_many_window_rows]


def assert_nothing_is_held(prefill: CachedPrefill) -> None:
    for pool in (prefill.pools.blocks, prefill.pools.states):
        pool.check_integrity()
        assert pool.free_rows == pool.capacity


def model_that_spoils(spoil: Callable[[Any], None]) -> Any:
    """A model that spoils layer 2 of its cache in the last call of a prompt of 384 tokens, for whoever looks later."""
    torch.manual_seed(0)
    model = DeepseekV4ForCausalLM(make_config(RATIOS)).eval()

    def after(_module: Any, _args: Any, options: dict[str, Any], _output: Any) -> None:
        if "position_ids" in options and int(options["position_ids"][0, -1]) == 383:
            spoil(options["cache"].layers[2])

    model.register_forward_hook(after, with_kwargs=True)
    return model


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_failed_capture_costs_the_capture_alone(
    spoil: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    service, model, prompt = MemoryService(Full()), model_that_spoils(spoil), make_prompt(384)
    with CachedPrefill(model, service, model_id="tiny", block_tokens=STEP) as prefill:
        with caplog.at_level(logging.ERROR):
            result = prefill(prompt)
        assert prefill.flush()
        assert "capturing failed at token 256" in caplog.text
        assert_nothing_is_held(prefill)
        assert len(result.block_keys) == 2
    assert same_bits(result.logits, uninterrupted(model, prompt, step=STEP)[1])


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_failed_snapshot_holds_nothing(spoil: Callable[[Any], None]) -> None:
    with CachedPrefill(model_that_spoils(spoil), model_id="tiny", block_tokens=STEP) as prefill:
        cache = prefill(make_prompt(384)).cache
        with pytest.raises((ModelNotSupported, RuntimeError)):
            prefill.snapshot(cache)
        assert_nothing_is_held(prefill)


def test_a_snapshot_of_other_dtypes_is_refused_by_name_also_inside_the_first_block() -> None:
    torch.manual_seed(0)
    model = DeepseekV4ForCausalLM(make_config(RATIOS)).eval()
    with CachedPrefill(model, model_id="tiny", block_tokens=STEP) as prefill:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cache = prefill(make_prompt(50)).cache
        with pytest.raises(ModelNotSupported, match=r"rows of torch\.bfloat16, the layout has float32: .* autocast"):
            prefill.snapshot(cache)
        assert_nothing_is_held(prefill)
