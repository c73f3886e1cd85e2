"""In-memory snapshots: at any position, restored byte for byte, forked, and sharing what they have in common."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from kvcairn_client.errors import ClosedClient, PoolExhausted, PromptNotSupported
from kvcairn_client.model_layout import describe
from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_client.sessions import Pools, snapshot
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.layout import Kind
from tiny_models import RATIOS, Oracle, differences, feed, make_model, make_prompt, same_bits, uninterrupted

POSITIONS = (1, 3, 4, 5, 126, 127, 128, 129, 130, 131, 255, 256, 257, 383, 384, 385, 511, 512, 513, 514, 1023, 1026)
MIXES = (RATIOS, (4, 128, 0, 4), (128, 0, 4, 128), (128, 128, 4, 128, 4))
FLOATS = (torch.float32, torch.bfloat16)


def make_pools(model: Any, *, block_tokens: int = 128, blocks: int = 40, slots: int = 4) -> Pools:
    model_cache = describe(model, model_id="tiny", block_tokens=block_tokens)
    return Pools(
        model_cache,
        BlockPool(model_cache.layout, capacity_blocks=blocks),
        StatePool(model_cache.slot_layout, slots=slots),
    )


def assert_resumes(model: Any, pools: Pools, oracle: Oracle, position: int) -> None:
    """Snapshot at `position`, restore, and run a suffix: in one call, then token by token."""
    live, _ = oracle.run(make_prompt(position))
    with snapshot(pools, live) as session:
        restored = session.restore()
    assert differences(restored, live) == []
    ids = make_prompt(position + 41)
    assert same_bits(
        feed(model, ids, restored, start=position, step=41), feed(model, ids, live, start=position, step=41)
    )
    ids = make_prompt(position + 46)
    end = position + 41
    assert same_bits(feed(model, ids, restored, start=end, step=1), feed(model, ids, live, start=end, step=1))
    assert differences(restored, live) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_snapshot_at_any_position_resumes_byte_for_byte(dtype: torch.dtype) -> None:
    model = make_model(RATIOS, dtype)
    pools = make_pools(model)
    oracle = Oracle(model, step=128)
    positions = POSITIONS if dtype is torch.float32 else (1, 127, 130, 257, 514)
    for position in positions:
        assert_resumes(model, pools, oracle, position)
    pools.blocks.check_integrity()
    pools.states.check_integrity()
    assert pools.blocks.free_rows == pools.blocks.capacity


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", [128, 256, 512])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ratios", MIXES, ids=str)
def test_every_layer_mix_is_snapshot_at_every_position(ratios: tuple[int, ...], dtype: torch.dtype, step: int) -> None:
    model = make_model(ratios, dtype)
    pools = make_pools(model, block_tokens=step)
    oracle = Oracle(model, step=step)
    for position in (*POSITIONS, 4100):
        assert_resumes(model, pools, oracle, position)


@pytest.fixture
def prefill() -> Iterator[CachedPrefill]:
    with CachedPrefill(make_model(), model_id="tiny", block_tokens=128, state_slots=6) as made:
        yield made


def test_a_fork_continues_on_its_own(prefill: CachedPrefill) -> None:
    model = make_model()
    oracle = Oracle(model, step=128)
    result = prefill(make_prompt(300))
    first = prefill.snapshot(result.cache, block_keys=result.block_keys)
    second = first.fork()
    taken = prefill.pools.blocks.free_rows
    for session, seed in ((first, 5), (second, 6), (first, 7)):
        branch = torch.cat([make_prompt(300), make_prompt(200, seed=seed)], dim=-1)
        cache, right = session.restore(), oracle.run(make_prompt(300))[0]
        logits = feed(model, branch, cache, start=300, step=84)
        assert same_bits(logits, feed(model, branch, right, start=300, step=84))
        assert differences(cache, right) == []
    assert prefill.pools.blocks.free_rows == taken
    first.close()
    assert differences(second.restore(), result.cache) == []
    second.close()
    second.close()
    prefill.pools.states.check_integrity()


def test_sessions_with_a_common_prefix_share_its_blocks(prefill: CachedPrefill) -> None:
    result = prefill(make_prompt(640))
    before = prefill.pools.blocks.free_rows
    with (
        prefill.snapshot(result.cache, block_keys=result.block_keys),
        prefill.snapshot(result.cache, block_keys=result.block_keys),
    ):
        assert before - prefill.pools.blocks.free_rows == 5


def test_blocks_that_decoding_completed_are_nobody_elses(prefill: CachedPrefill) -> None:
    """Their bits differ from prefill's: a session keeps them, but no prompt may ever find them."""
    model = make_model()
    prompt = make_prompt(256)
    result = prefill(prompt[:, :250])
    feed(model, prompt, result.cache, start=250, step=1)
    with prefill.snapshot(result.cache, block_keys=result.block_keys) as session:
        assert differences(session.restore(), result.cache) == []
        again = prefill(make_prompt(300))
    assert again.report.hit_tokens == 128
    assert differences(again.cache, uninterrupted(model, make_prompt(300), step=128)[0]) == []


def test_a_restored_cache_shares_no_memory_with_the_pools(prefill: CachedPrefill) -> None:
    result = prefill(make_prompt(300))
    with prefill.snapshot(result.cache, block_keys=result.block_keys) as session:
        restored = session.restore()
        for pool in (prefill.pools.blocks, prefill.pools.states):
            pool.bytes.fill_(0x55)
    assert differences(restored, result.cache) == []


def test_a_full_pool_says_so_and_keeps_its_accounting() -> None:
    model = make_model()
    pools = make_pools(model, blocks=4, slots=2)
    cache, _ = uninterrupted(model, make_prompt(300), step=128)
    with snapshot(pools, cache):
        with pytest.raises(PoolExhausted, match="all 4 blocks are held"):
            snapshot(pools, cache)
        second = snapshot(pools, uninterrupted(model, make_prompt(1), step=128)[0])
        with second, pytest.raises(PoolExhausted, match="all 2 state slots are held"):
            snapshot(pools, cache)
    pools.blocks.check_integrity()
    pools.states.check_integrity()
    assert (pools.blocks.free_rows, pools.states.free_rows) == (4, 2)


def test_an_empty_cache_and_a_closed_session_are_refused(prefill: CachedPrefill) -> None:
    with pytest.raises(PromptNotSupported, match="cache is empty"):
        prefill.snapshot(DynamicCache(config=make_model().config))
    session = prefill.snapshot(prefill(make_prompt(5)).cache)
    session.close()
    with pytest.raises(ClosedClient, match="session is closed"):
        session.restore()


def test_a_slot_begins_with_a_state_records_payload() -> None:
    model_cache = make_pools(make_model()).model_cache
    state, slot = (layout.segments(Kind.STATE) for layout in (model_cache.layout, model_cache.slot_layout))
    assert slot[: len(state)] == state
    names = {segment.stream.name for segment in slot[len(state) :]}
    assert names == {
        "csa_pending_kv", "csa_pending_gate", "csa_index_pending_kv", "csa_index_pending_gate",
        "hca_pending_kv", "hca_pending_gate",
    }  # fmt: skip
