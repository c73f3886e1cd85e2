"""Settings that change bits: in the identity, and checked at each call, which without them is a plain prefill."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvcairn_client.model_layout import layout_of
from kvcairn_client.settings import current_settings
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.strategy import Full
from memory_service import MemoryService
from tiny_models import RATIOS, Oracle, differences, make_model, make_prompt, same_bits

STEP = 128
Change = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def precision_of_one_backend(value: str) -> Iterator[None]:
    """torch's newer way, after which it refuses to answer torch.get_float32_matmul_precision()."""
    backend: Any = torch.backends.mkldnn
    backend.matmul.fp32_precision = value
    try:
        yield
    finally:
        backend.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's signature
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)  # noqa: FBT003


@contextlib.contextmanager
def no_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def no_onednn() -> Iterator[None]:
    backend: Any = torch.backends.mkldnn
    backend.set_flags(_enabled=False)
    try:
        yield
    finally:
        backend.set_flags(_enabled=True)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        yield


CHANGES: dict[str, Change] = {
    "threads": lambda: threads(3),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float32 matmul precision": lambda: matmul_precision("medium"),
    "the precision of one backend": lambda: precision_of_one_backend("bf16"),
    "deterministic algorithms": deterministic,
    "flushed denormals": no_denormals,
    "no oneDNN": no_onednn,
    "a variable of oneDNN": lambda: environment("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
}


def server(service: Any, model: Any = None) -> CachedPrefill:
    return CachedPrefill(model or make_model(), service, model_id="tiny", block_tokens=STEP)


def assert_unused(prefill: CachedPrefill) -> None:
    assert (len(prefill.pools.blocks), len(prefill.pools.states)) == (0, 0)
    assert prefill.pools.blocks.free_rows == prefill.pools.blocks.capacity
    assert prefill.pools.states.free_rows == prefill.pools.states.capacity


def test_each_setting_is_part_of_the_identity() -> None:
    model = make_model(RATIOS, torch.bfloat16)
    found = {"none": layout_of(model, model_id="tiny", block_tokens=STEP).fingerprint}
    for name, change in CHANGES.items():
        with change():
            found[name] = layout_of(model, model_id="tiny", block_tokens=STEP).fingerprint
    assert len(set(found.values())) == len(found)
    assert layout_of(model, model_id="tiny", block_tokens=STEP).fingerprint == found["none"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_call_under_another_setting_neither_reads_nor_stores(name: str, caplog: pytest.LogCaptureFixture) -> None:
    service = MemoryService(Full())
    with server(service, make_model(RATIOS, torch.bfloat16)) as prefill:
        with CHANGES[name](), caplog.at_level(logging.WARNING):
            results = [prefill(make_prompt(300)) for _ in range(2)]
        assert prefill.flush()
        assert_unused(prefill)
        assert (service.lookups, service.fetches, service.offered) == ([], 0, [])
        for result in results:
            report = result.report
            assert (report.hit_tokens, report.computed_tokens, report.bytes_offered) == (0, 300, 0)
            assert result.block_keys == []
    assert [record.name for record in caplog.records] == ["kvcairn_client.settings"]


def test_it_is_the_plain_blockwise_prefill_of_that_setting() -> None:
    """Also where the prompt is stored under the recorded setting: those bits are others. float32, where they differ."""
    service, prompt = MemoryService(), make_prompt(700)
    with server(service) as prefill:
        prefill(prompt)
        with threads(2):
            result = prefill(prompt)
            cache, logits = Oracle(make_model(), step=STEP).run(prompt)
        assert result.report.hit_tokens == 0
        assert same_bits(result.logits, logits)
        assert differences(result.cache, cache) == []
        assert prefill(prompt).report.hit_tokens == 640


def test_autocast_neither_raises_nor_poisons() -> None:
    """In float32 the cache has other dtypes than the layout; in bfloat16 it has the same, and other bits."""
    for dtype in (torch.float32, torch.bfloat16):
        model, service, prompt = make_model(RATIOS, dtype), MemoryService(Full()), make_prompt(700)
        with server(service, model) as prefill, torch.autocast("cpu", dtype=torch.bfloat16):
            assert prefill(prompt).report.computed_tokens == 700
        with server(service, model) as reader:
            result = reader(prompt)
        cache, logits = Oracle(model, step=STEP).run(prompt)
        assert same_bits(result.logits, logits)
        assert differences(result.cache, cache) == []


def test_from_the_block_on_at_which_a_setting_changes_nothing_is_captured_or_shared() -> None:
    """The callback changes it in the middle of a prefill, and back again: what follows is still built on other bits."""
    service, prompt = MemoryService(Full()), make_prompt(700)
    with server(service) as prefill:

        def change(done: int, _total: int) -> None:
            torch.set_num_threads({256: 2, 384: 1}.get(done, torch.get_num_threads()))

        result = prefill(prompt, on_block=change)
        assert prefill.flush()
        assert len(result.block_keys) == 2
        assert {record.key for record in service.offered} == set(result.block_keys)
        assert len(prefill.pools.blocks) == 2
        with prefill.snapshot(result.cache, block_keys=result.block_keys):
            assert len(prefill.pools.blocks) == 2


def test_the_dtype_of_autocast_counts_too() -> None:
    found = set()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            found.add(current_settings(make_model(), ["cpu"])["autocast"])
    assert found == {"cpu torch.bfloat16", "cpu torch.float16"}


def test_another_thread_count_is_another_identity_on_the_cpu() -> None:
    one = layout_of(make_model(), model_id="tiny", block_tokens=STEP)
    with threads(2):
        two = layout_of(make_model(), model_id="tiny", block_tokens=STEP)
    assert "1 threads" in one.identity["cpu"]
    assert "2 threads" in two.identity["cpu"]
    assert "cuda" not in one.identity


def test_on_a_gpu_its_own_settings_count_and_threads_do_not() -> None:
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(current_settings(make_model(), ["cuda"]))
    assert found[0] == found[1]
    assert "cpu" not in found[0]
    matmul = torch.backends.cuda.matmul
    usual = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        assert current_settings(make_model(), ["cuda"])["cuda"] != found[0]["cuda"]
    finally:
        matmul.allow_bf16_reduced_precision_reduction = usual
