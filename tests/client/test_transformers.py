"""CachedPrefill: what it takes, what it reports, how it calls the model, and what it does when the service fails."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV4ForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_client.errors import ClosedClient, ModelNotSupported, PromptNotSupported
from kvcairn_client.report import PrefillResult
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.codec import decode_into
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import HEADER_BYTES, verify_record
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero
from memory_service import MemoryService
from serving import running_service
from tiny_models import RATIOS, Oracle, differences, make_config, make_model, make_prompt, same_bits, uninterrupted

STEP = 128
ORACLE = Oracle(make_model(), step=STEP)


def server(service: Any = None, **options: Any) -> CachedPrefill:
    return CachedPrefill(make_model(), service, **{"model_id": "tiny", "block_tokens": STEP, **options})


def assert_right(result: PrefillResult, prompt: torch.Tensor) -> None:
    cache, logits = ORACLE.run(prompt)
    assert same_bits(result.logits, logits)
    assert differences(result.cache, cache) == []


@pytest.fixture
def alone() -> Iterator[CachedPrefill]:
    with server() as prefill:
        yield prefill


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.zeros((1, 0), dtype=torch.long), "prompt is empty"),
        (torch.zeros((2, 5), dtype=torch.long), r"one prompt at a time.*found \[2, 5\]"),
        (torch.zeros(5, dtype=torch.long), r"\[1, tokens\]; found \[5\]"),
        (torch.zeros((1, 5)), "int64 or int32 token ids; found torch.float32"),
        (torch.zeros((1, 5), dtype=torch.bool), "found torch.bool"),
        ([[1, 2, 3]], "torch tensor.*found a list"),
        (torch.tensor([[1, 512]]), r"lie in \[0, 512\).*found 1 to 512"),
        (torch.tensor([[-1, 2]]), "found -1 to 2"),
    ],
)
def test_anything_but_one_prompt_is_refused_by_name(alone: CachedPrefill, prompt: Any, message: str) -> None:
    with pytest.raises(PromptNotSupported, match=message):
        alone(prompt)


def test_int32_tokens_are_the_same_prompt(alone: CachedPrefill) -> None:
    assert_right(alone(make_prompt(200).to(torch.int32)), make_prompt(200))
    assert alone(make_prompt(200)).report.hit_tokens == STEP


def test_a_model_in_training_or_of_another_kind_is_refused() -> None:
    model = DeepseekV4ForCausalLM(make_config((0, 4)))
    with pytest.raises(ModelNotSupported, match="training mode"):
        CachedPrefill(model.train())
    with CachedPrefill(model.eval(), model_id="tiny", block_tokens=STEP) as prefill:
        model.train()
        with pytest.raises(ModelNotSupported, match=r"model\.eval\(\)"):
            prefill(make_prompt(5))
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with pytest.raises(ModelNotSupported, match="DeepseekV4ForCausalLM, not LlamaForCausalLM"):
        CachedPrefill(LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).eval())


def test_budgets_are_for_a_client_that_is_made_here() -> None:
    with Client() as client, pytest.raises(ValueError, match="give them to the Client itself"):
        server(client, budgets=Budgets())


def test_a_closed_prefill_says_so() -> None:
    prefill = server()
    prefill.close()
    prefill.close()
    with pytest.raises(ClosedClient, match="this prefill is closed"):
        prefill(make_prompt(5))


def test_every_forward_call_is_one_block_from_position_0() -> None:
    model = DeepseekV4ForCausalLM(make_config(RATIOS)).eval()
    calls: list[tuple[int, int]] = []

    def watch(_module: Any, _args: Any, options: dict[str, Any]) -> None:
        places = options["position_ids"]
        calls.append((int(places[0, 0]), int(places[0, -1]) + 1))

    service = MemoryService()
    with CachedPrefill(model, service, model_id="tiny", block_tokens=STEP) as prefill:
        model.register_forward_pre_hook(watch, with_kwargs=True)
        prefill(make_prompt(300))
        prefill(make_prompt(300))
        prefill(make_prompt(256))
        prefill(make_prompt(257))
    assert calls == [(0, 128), (128, 256), (256, 300), (256, 300), (0, 128), (128, 256), (256, 257)]


def test_progress_counts_every_block(alone: CachedPrefill) -> None:
    seen: list[tuple[int, int]] = []
    alone(make_prompt(300), on_block=lambda done, total: seen.append((done, total)))
    alone(make_prompt(300), on_block=lambda done, total: seen.append((done, total)))
    assert seen == [(128, 300), (256, 300), (300, 300), (300, 300)]


def test_an_error_in_the_callers_own_progress_leaves_the_pools_whole(alone: CachedPrefill) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alone(make_prompt(300), on_block=stop)
    alone.pools.blocks.check_integrity()
    assert alone.pools.blocks.free_rows == alone.pools.blocks.capacity
    assert_right(alone(make_prompt(300)), make_prompt(300))


def test_the_result_is_the_models_own_kind_of_cache_and_every_row_of_the_last_call(alone: CachedPrefill) -> None:
    for _ in range(2):
        result = alone(make_prompt(300))
        assert type(result.cache) is DynamicCache
        assert result.logits.shape == (1, 44, 512)
        assert not result.logits.requires_grad


def test_the_report_accounts_for_every_token() -> None:
    service = MemoryService(Periodic(every_tokens=2 * STEP))
    with server(service) as first:
        cold = first(make_prompt(1000)).report
        assert first.flush()
    assert (cold.hit_tokens, cold.loaded_tokens, cold.computed_tokens, cold.bytes_received) == (0, 0, 1000, 0)
    history, state = first.layout.payload_bytes(Kind.HISTORY), first.layout.payload_bytes(Kind.STATE)
    assert cold.bytes_offered == 7 * history + 3 * state
    with server(service) as second:
        found = second(make_prompt(1000)).report
    assert (found.prompt_tokens, found.hit_tokens, found.computed_tokens) == (1000, 896, 104)
    assert (found.state_tokens, found.loaded_tokens, found.replayed_tokens, found.pooled_tokens) == (768, 768, 128, 0)
    assert found.bytes_received == 6 * history + state
    assert found.bytes_offered == 0
    assert found.seconds == found.restore_seconds + found.compute_seconds


def test_a_result_keeps_its_bytes_when_the_pools_are_reused(alone: CachedPrefill) -> None:
    alone(make_prompt(700))
    result = alone(make_prompt(700))
    assert result.report.pooled_tokens == 640
    alone.pools.blocks.bytes.fill_(0x55)
    alone.pools.states.bytes.fill_(0x55)
    assert_right(result, make_prompt(700))


def test_a_prompt_that_the_pools_serve_asks_nobody_but_reports_its_use() -> None:
    service = MemoryService()
    with server(service) as prefill:
        prefill(make_prompt(700))
        assert prefill.flush()
        asked = len(service.lookups)
        result = prefill(make_prompt(700))
        assert prefill.flush()
    assert_right(result, make_prompt(700))
    assert (len(service.lookups), service.fetches) == (asked, 0)
    assert [(ref.kind, ref.key) for ref in service.touched] == [
        (Kind.HISTORY, result.block_keys[4]),
        (Kind.STATE, result.block_keys[4]),
    ]


def test_a_prompt_shorter_than_a_block_asks_nobody() -> None:
    service = MemoryService()
    with server(service) as prefill:
        assert_right(prefill(make_prompt(127)), make_prompt(127))
        assert prefill.flush()
    assert (service.lookups, service.records) == ([], {})


def test_what_the_service_lost_is_given_back_from_the_pools() -> None:
    service = MemoryService()
    with server(service) as prefill:
        prefill(make_prompt(700))
        assert prefill.flush()
        stored = dict(service.records)
        service.records.clear()
        prefill(make_prompt(700))
        assert prefill.flush()
        assert service.records == stored


def test_blocks_that_the_service_lost_are_offered_again_when_they_are_computed_again() -> None:
    """The pools have the blocks, but no state: the run starts at 0 and takes nothing from them that it could report."""
    service = MemoryService(Zero())
    with server(service) as prefill:
        prefill(make_prompt(700))
        assert prefill.flush()
        stored = dict(service.records)
        service.records.clear()
        assert prefill(make_prompt(700)).report.loaded_tokens == 0
        assert prefill.flush()
        assert service.records == stored


def test_another_salt_is_another_key_space() -> None:
    service = MemoryService()
    for salt, hit in (("", 0), ("red", 0), ("blue", 0), ("red", 640)):
        with server(service, salt=salt) as prefill:
            assert prefill(make_prompt(700)).report.hit_tokens == hit
            assert prefill.flush()


class Rows(DynamicCache):
    """Every window row that a run made, by layer, from what each update returns."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.rows: dict[int, list[torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kw: Any
    ) -> Any:
        full, values = super().update(key_states, value_states, layer_idx, *args, **kw)
        self.rows.setdefault(layer_idx, []).extend(full[0, 0, -key_states.shape[-2] :])
        return full, values


def test_strategy_full_stores_every_window_row_once() -> None:
    """A block's window record and the states around it hold all rows between them, byte for byte."""
    step, tokens = 256, 1024
    model = make_model()
    service = MemoryService(Full())
    with CachedPrefill(model, service, model_id="tiny", block_tokens=step) as prefill:
        keys = prefill(make_prompt(tokens)).block_keys
        assert prefill.flush()
        layout = prefill.layout
    expected = Rows(model.config)
    with torch.no_grad():
        for start in range(0, tokens, step):
            ids = make_prompt(tokens)[:, start : start + step]
            model(input_ids=ids, cache=expected, position_ids=torch.arange(start, start + step)[None])
    for block, key in enumerate(keys):
        parts = {}
        for kind in (Kind.WINDOW, Kind.STATE):
            record = service.records[kind, key]
            header = verify_record(record, layout, max_raw_bytes=1 << 24)
            assert header.position == (block + 1) * step
            payload = bytearray(header.raw_bytes)
            decode_into(memoryview(payload), header.codec, record[HEADER_BYTES:], layout.segments(kind))
            parts[kind] = payload
        for window, state in zip(layout.segments(Kind.WINDOW), layout.segments(Kind.STATE), strict=False):
            assert window.rows == step - 127
            held = b"".join(
                bytes(parts[kind][part.offset : part.offset + part.size_bytes])
                for kind, part in ((Kind.WINDOW, window), (Kind.STATE, state))
            )
            rows = torch.stack(expected.rows[window.stream.layer][block * step : (block + 1) * step])
            assert held == rows.numpy().tobytes()


def test_a_dead_service_costs_a_bounded_time_and_no_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with server(url, budgets=Budgets(connect_seconds=0.2, control_seconds=0.3)) as prefill:
            for tokens in (300, 300, 700):
                assert_right(prefill(make_prompt(tokens)), make_prompt(tokens))
            assert prefill.flush(20.0)


def test_a_service_that_is_killed_in_the_middle_costs_a_shorter_hit(tmp_path: Path) -> None:
    prompt, longer = make_prompt(700), make_prompt(1100)
    with running_service(tmp_path / "data") as service, Client(service.url) as client:
        with server(client) as first:
            first(prompt)
            assert first.flush()
        with server(client) as second:
            result = second(longer, on_block=lambda done, _: service.kill() if done == 768 else None)
            assert_right(result, longer)
            assert result.report.hit_tokens == 640
            assert_right(second(make_prompt(1400)), make_prompt(1400))
            second.flush(20.0)
        with server(client) as third:
            assert third(prompt).report.hit_tokens == 0


def test_a_silent_service_costs_no_error() -> None:
    """It accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        budgets = Budgets(control_seconds=0.5, fetch_seconds=0.5, store_seconds=0.5, stall_seconds=0.2)
        with server(url, budgets=budgets) as prefill:
            for tokens in (300, 700):
                assert_right(prefill(make_prompt(tokens)), make_prompt(tokens))


def test_threads_that_share_one_prefill_get_right_results() -> None:
    service = MemoryService()
    prompts = [torch.cat([make_prompt(300), make_prompt(tail, seed=tail)], dim=-1) for tail in (30, 100, 200)]
    right = [ORACLE.run(prompt) for prompt in prompts]
    wrong: list[int] = []
    with server(service) as prefill:

        def work(first: int) -> None:
            for turn in range(4):
                place = (first + turn) % len(prompts)
                result = prefill(prompts[place])
                if not same_bits(result.logits, right[place][1]) or differences(result.cache, right[place][0]):
                    wrong.append(place)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        prefill.pools.blocks.check_integrity()
        prefill.pools.states.check_integrity()
        assert prefill.pools.blocks.free_rows == prefill.pools.blocks.capacity


def test_a_model_as_from_pretrained_loads_it_keeps_its_own_dtypes(tmp_path: Path) -> None:
    """bfloat16 entries beside float32 gates, and compressors that stay in float32: no dtype is assumed."""
    DeepseekV4ForCausalLM(make_config(RATIOS)).save_pretrained(tmp_path)
    model = DeepseekV4ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    service = MemoryService(Anchored())
    prompt = make_prompt(1000)
    for _ in range(2):
        with CachedPrefill(model, service, block_tokens=STEP) as prefill:
            result = prefill(prompt)
            assert prefill.flush()
    dtypes = {(stream.name, stream.dtype) for stream in prefill.layout.streams}
    assert ("window", "bfloat16") in dtypes
    assert ("csa_overlap_gate", "float32") in dtypes
    cache, logits = uninterrupted(model, prompt, step=STEP)
    assert result.report.state_tokens == 896
    assert same_bits(result.logits, logits)
    assert differences(result.cache, cache) == []
    with prefill.snapshot(cache) as session:
        assert differences(session.restore(), cache) == []


def test_restoring_is_cheap_beside_computing() -> None:
    """Counted, not timed: from a state at the hit, one forward call is left, whatever the prompt's length."""
    service = MemoryService()
    model = DeepseekV4ForCausalLM(make_config(RATIOS)).eval()
    calls: list[int] = []
    prompt = make_prompt(2100)
    with CachedPrefill(model, service, model_id="tiny", block_tokens=STEP) as first:
        first(prompt)
        assert first.flush()
    with CachedPrefill(model, service, model_id="tiny", block_tokens=STEP) as second:
        model.register_forward_pre_hook(lambda *_: calls.append(1))
        second(prompt)
    assert len(calls) == 1


def test_inference_mode_changes_nothing() -> None:
    service = MemoryService()
    prompt = make_prompt(700)
    with torch.inference_mode():
        prefill = server(service)
        assert_right(prefill(prompt[:, :300]), prompt[:, :300])
    with prefill:
        result = prefill(prompt)
    assert_right(result, prompt)
    assert result.report.pooled_tokens == 256
