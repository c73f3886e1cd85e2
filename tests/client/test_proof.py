"""The card's invariant: restore(snapshot(k)) and any suffix equal an uninterrupted run, byte for byte.

Every attribute of every cache layer and every row of logits is compared bit by bit with a run that knows nothing of
kvcairn. `make proof` runs the whole matrix, `make test` a thin one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kvcairn_client.client import Client
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.plan import plan_restore
from serving import ServiceProcess, running_service
from tiny_models import RATIOS, Oracle, differences, feed, make_model, make_prompt, same_bits, uninterrupted

LENGTHS = (
    1, 127, 128, 129, 130, 255, 256, 257, 383, 384, 385, 511, 512, 513, 514, 1023, 1024, 1025, 1026, 2348, 4100,
)  # fmt: skip
MIX_LENGTHS = (1, 127, 128, 129, 257, 384, 513, 1024, 1025)
THIN_LENGTHS = (1, 128, 129, 257, 384, 1025)
FLOATS = (torch.float32, torch.bfloat16)
BLOCKS = (128, 256, 512)

CSA_FIRST = (4, 128, 0, 4)
HCA_FIRST = (128, 0, 4, 128)
NO_SLIDING_ONLY = (128, 128, 4, 128, 4)
CSA_ONLY = (0, 4, 4)
HCA_ONLY = (0, 128, 128)
OTHER_MIXES = (CSA_FIRST, HCA_FIRST, NO_SLIDING_ONLY, CSA_ONLY, HCA_ONLY)

SUFFIX = make_prompt(41, seed=99)


def strategies(block_tokens: int) -> tuple[dict[str, Any], ...]:
    return (
        {"kind": "full"},
        {"kind": "periodic", "every_tokens": 2 * block_tokens},
        {"kind": "zero"},
        {"kind": "anchored"},
    )


def matrix() -> Iterator[Any]:
    """(ratios, dtype, block_tokens, lengths) of every case."""
    for dtype in FLOATS:
        for block in BLOCKS:
            yield RATIOS, dtype, block, LENGTHS
        for mix in OTHER_MIXES:
            yield mix, dtype, 128, MIX_LENGTHS
        # Blocks shorter than the window: a state reaches back across several of them, and there are no window records.
        yield CSA_ONLY, dtype, 64, MIX_LENGTHS


THIN = (
    (RATIOS, torch.float32, 128, THIN_LENGTHS),
    (RATIOS, torch.bfloat16, 128, (129, 384, 1025)),
    (RATIOS, torch.float32, 512, (511, 1026)),
    (RATIOS, torch.bfloat16, 256, (255, 513)),
    (CSA_FIRST, torch.float32, 128, (127, 130, 514)),
    (HCA_FIRST, torch.bfloat16, 128, (130, 383)),
    (NO_SLIDING_ONLY, torch.float32, 128, (256, 900)),
    (CSA_ONLY, torch.float32, 64, (63, 64, 130, 600)),
)


def set_strategy(service: ServiceProcess, strategy: dict[str, Any]) -> None:
    with service.http() as http:
        http.patch("/v1/tenants/default", json={"strategy": strategy}).raise_for_status()


@contextmanager
def one_server(
    model: Any, service: ServiceProcess, block_tokens: int, salt: str, *, attach: Path | None = None
) -> Iterator[CachedPrefill]:
    """A server's client with empty pools; the salt gives each case a key space of its own.

    Over TCP where the service listens there; attach: its data directory, for a client that reads it in place.
    """
    options: dict[str, Any] = {"model_id": "tiny", "block_tokens": block_tokens, "salt": salt}
    with (
        Client(service.url or service.uds_url, attach=attach) as client,
        CachedPrefill(model, client, **options) as server,
    ):
        yield server


def assert_equal_runs(found: Any, right: tuple[Any, torch.Tensor]) -> None:
    cache, logits = right
    assert same_bits(found.logits, logits)
    assert differences(found.cache, cache) == []


def prove(
    data: Path, ratios: tuple[int, ...], dtype: torch.dtype, block: int, lengths: Sequence[int], *, way: str = "tcp"
) -> None:
    """Server A prefills prompts, the service restarts, server B restores each of them for another suffix.

    way: tcp, unix, or attach: over TCP, but the records are read from the data directory itself.
    """
    attach = data if way == "attach" else None
    flags = ("--host", "none", "--uds", f"{data}.socket") if way == "unix" else ()
    model = make_model(ratios, dtype)
    oracle = Oracle(model, step=block)
    kinds = strategies(block)
    with running_service(data, *flags) as service:
        for strategy in kinds:
            set_strategy(service, strategy)
            for length in lengths:
                with one_server(model, service, block, f"{strategy}{length}", attach=attach) as server_a:
                    assert_equal_runs(server_a(make_prompt(length)), oracle.run(make_prompt(length)))
                    assert server_a.flush()
    with running_service(data, *flags) as service:
        for strategy in kinds:
            for length in lengths:
                prompt = torch.cat([make_prompt(length), SUFFIX], dim=-1)
                with one_server(model, service, block, f"{strategy}{length}", attach=attach) as server_b:
                    result = server_b(prompt)
                right = oracle.run(prompt)
                assert_equal_runs(result, right)
                assert result.report.hit_tokens == length // block * block
                has_received = result.report.loaded_tokens > 0 and way != "attach"
                assert (result.report.bytes_received > 0) is has_received
                assert_decodes_alike(model, result.cache, right[0], start=prompt.shape[1])


def assert_decodes_alike(model: Any, found: Any, right: Any, *, start: int) -> None:
    """Three single-token steps, as generation makes them; changes both caches."""
    ids = torch.cat([torch.zeros((1, start), dtype=torch.long), make_prompt(3, seed=7)], dim=-1)
    assert same_bits(feed(model, ids, found, start=start, step=1), feed(model, ids, right, start=start, step=1))
    assert differences(found, right) == []


def name_of(case: Any) -> str:
    ratios, dtype, block, _ = case
    return f"{'-'.join(map(str, ratios))} {str(dtype).removeprefix('torch.')} {block}"


@pytest.mark.parametrize("case", THIN, ids=name_of)
def test_another_server_restores_each_strategy_after_a_restart_byte_for_byte(tmp_path: Path, case: Any) -> None:
    prove(tmp_path / "data", *case)


@pytest.mark.parametrize("way", ["unix", "attach"])
def test_the_same_over_a_unix_socket_and_from_the_directory_itself(tmp_path: Path, way: str) -> None:
    prove(tmp_path / "data", RATIOS, torch.bfloat16, 128, (1025,), way=way)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", list(matrix()), ids=name_of)
def test_the_whole_matrix_holds(tmp_path: Path, case: Any) -> None:
    prove(tmp_path / "data", *case)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_oracle_equals_a_run_in_one_go(dtype: torch.dtype) -> None:
    model = make_model(RATIOS, dtype)
    oracle = Oracle(model, step=128)
    for length in (1, 127, 128, 129, 700):
        cache, logits = uninterrupted(model, make_prompt(length), step=128)
        kept_cache, kept_logits = oracle.run(make_prompt(length))
        assert same_bits(kept_logits, logits)
        assert differences(kept_cache, cache) == []


@pytest.mark.parametrize("strategy", strategies(128), ids=lambda strategy: strategy["kind"])
def test_sessions_that_share_a_prefix_and_branch_stay_apart(tmp_path: Path, strategy: dict[str, Any]) -> None:
    """Many prompts through one server, then through another: each run's tail is the next one's history."""
    model = make_model()
    oracle = Oracle(model, step=128)
    shared = make_prompt(1050)
    branches = [torch.cat([shared, make_prompt(tail, seed=10 + tail)], dim=-1) for tail in (1, 130, 300)]
    deeper = [torch.cat([branches[2], make_prompt(tail, seed=tail)], dim=-1) for tail in (60,)]
    prompts = [shared, *branches, *deeper, branches[1], shared[:, :1024], shared[:, :1025]]
    with running_service(tmp_path / "data") as service:
        set_strategy(service, strategy)
        for _ in range(2):
            with one_server(model, service, 128, "") as server:
                for prompt in prompts:
                    assert_equal_runs(server(prompt), oracle.run(prompt))
                    server.pools.blocks.check_integrity()
                    server.pools.states.check_integrity()
                assert server.flush()
                assert server.pools.blocks.free_rows == server.pools.blocks.capacity


def test_a_prompt_of_some_thousand_tokens_is_restored_byte_for_byte(tmp_path: Path) -> None:
    model = make_model()
    oracle = Oracle(model, step=512)
    prompt = make_prompt(4100)
    with running_service(tmp_path / "data") as service:
        for strategy in ({"kind": "zero"}, {"kind": "anchored"}):
            set_strategy(service, strategy)
            for _ in range(2):
                with one_server(model, service, 512, strategy["kind"]) as server:
                    result = server(prompt)
                    assert server.flush()
                assert_equal_runs(result, oracle.run(prompt))
            plan = plan_restore(server.layout, prompt_tokens=4100, history_blocks=8, state_tokens=())
            replayed = 0 if strategy["kind"] == "anchored" else plan.replayed_tokens
            assert (result.report.hit_tokens, result.report.replayed_tokens) == (4096, replayed)


def test_states_captured_after_a_replay_are_true(tmp_path: Path) -> None:
    """History without states, then a strategy that wants them everywhere: none may come from the untrue part."""
    model = make_model()
    oracle = Oracle(model, step=128)
    prompt = make_prompt(1700)
    with running_service(tmp_path / "data") as service:
        for strategy, tokens in (({"kind": "zero"}, 1500), ({"kind": "full"}, 1700)):
            set_strategy(service, strategy)
            with one_server(model, service, 128, "") as server:
                result = server(prompt[:, :tokens])
                assert server.flush()
        assert (result.report.hit_tokens, result.report.replayed_tokens) == (1408, 768)
        set_strategy(service, {"kind": "zero"})
        states = []
        for tokens in range(641, 1700, 128):
            with one_server(model, service, 128, "") as server:
                result = server(prompt[:, :tokens])
            assert_equal_runs(result, oracle.run(prompt[:, :tokens]))
            states.append(result.report.state_tokens)
        assert [state for state in states if state] == [1408, 1536, 1664]


def test_generation_from_a_restored_cache_gives_the_same_tokens(tmp_path: Path) -> None:
    model = make_model()
    prompt = make_prompt(700)
    cache, logits = uninterrupted(model, prompt, step=128)
    with running_service(tmp_path / "data") as service:
        for _ in range(2):
            with one_server(model, service, 128, "") as server:
                result = server(prompt)
                assert server.flush()
    assert result.report.state_tokens == 640
    texts = []
    for held, last in ((result.cache, result.logits), (cache, logits)):
        ids = torch.cat([prompt, last[:, -1:].argmax(-1)], dim=-1)
        texts.append(model.generate(ids, cache=held, max_new_tokens=12, do_sample=False, pad_token_id=0))
    assert torch.equal(*texts)
    assert texts[0].shape[1] == 713
    assert differences(result.cache, cache) == []
