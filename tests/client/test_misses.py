"""A prompt of which nothing is stored: one round trip, and nothing taken for what does not come."""

import pytest
import torch

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.failopen import FailOpen
from kvcairn_client.restore import restore
from kvcairn_client.testing import FakeService
from kvcairn_client.transformers import CachedPrefill
from kvcairn_client.wire import Wire
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


def test_a_question_leaves_in_one_send(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head and body apart would be two packets, and the service would wake up for each."""
    layout = samples.layout()
    sent: list[int] = []
    send_all = Wire.send_all

    def counted(wire: Wire, data: bytes) -> None:
        if data:
            sent.append(len(data))
        send_all(wire, data)

    monkeypatch.setattr(Wire, "send_all", counted)
    with Client(service.url) as client:
        client.lookup(layout, [bytes(32)])  # makes the layout known, and asks for the limits
        sent.clear()
        for _ in range(3):
            assert client.lookup(layout, [bytes(32)]).history_blocks == 0
    assert len(sent) == 3
