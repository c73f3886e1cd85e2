"""A prompt of which nothing is stored: one round trip, and nothing taken for what does not come."""

import torch

from kvcairn_client.client import Client
from kvcairn_client.failopen import FailOpen
from kvcairn_client.restore import restore
from kvcairn_client.testing import FakeService
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.prefix import block_keys
from tiny_models import make_model, make_prompt

STEP = 128


def tokens(seed: int) -> torch.Tensor:
    return make_prompt(8 * STEP + 1, seed=seed)[0]


def test_a_miss_is_one_request_on_an_open_connection_and_takes_no_row(service: FakeService) -> None:
    with (
        Client(service.url) as client,
        CachedPrefill(make_model(), None, model_id="tiny", block_tokens=STEP) as prefill,
    ):
        for seed in (1, 2):
            service.seen.clear()
            connections = service.accepted
            keys = block_keys(prefill.layout, tokens(seed).numpy())
            restored = restore(prefill.pools, FailOpen(client), keys, prompt_tokens=8 * STEP + 1)
            assert restored.was_asked
            assert restored.plan.start_tokens == 0
            assert prefill.pools.blocks.free_rows == prefill.pools.blocks.capacity
            assert prefill.pools.states.free_rows == prefill.pools.states.capacity
            restored.loaded.release()
        # The first prompt of a client makes its layout known, and asks for the limits.
        assert service.seen == ["POST /v1/prefixes:lookup"]
        assert service.accepted == connections
