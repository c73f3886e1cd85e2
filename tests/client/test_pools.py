"""The two pools as tensors: payload bytes in, rows of the right type out, whatever the offsets are."""

import struct

import numpy as np
import pytest

from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_protocol.layout import CarryStream, HistoryStream, Kind, Layout, WindowStream

BLOCK = 8


def odd_layout() -> Layout:
    """Offsets that the dtypes do not divide: three bytes a row, then float32, then bfloat16."""
    return Layout(
        version=1, model="odd", chained=True, block_tokens=BLOCK, layers=2, replay_tokens=7, identity={},
        streams=(
            HistoryStream(kind="history", name="csa", layer=0, tokens_per_row=8, row_shape=(3,), dtype="uint8"),
            HistoryStream(kind="history", name="hca", layer=1, tokens_per_row=4, row_shape=(2,), dtype="float32"),
            WindowStream(kind="window", name="window", layer=0, rows=1, row_shape=(1,), dtype="uint8"),
            CarryStream(kind="carry", name="csa_overlap_kv", layer=0, rows=2, row_shape=(1,), dtype="bfloat16"),
        ),
    )  # fmt: skip


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(odd_layout(), capacity_blocks=4)


def fill(pool: BlockPool, seed: int) -> int:
    row = pool.take()
    assert row is not None
    floats = [seed + 0.5, seed + 1.5, seed + 2.5, seed + 3.5]
    pool.view(row)[:] = bytes([seed] * 3) + struct.pack("<4f", *floats)
    return row


def test_rows_of_several_blocks_come_out_in_order_and_in_their_type(pool: BlockPool) -> None:
    rows = [fill(pool, seed) for seed in (7, 9)]
    small, floats = odd_layout().segments(Kind.HISTORY)
    assert pool.rows(rows, small).tolist() == [[7, 7, 7], [9, 9, 9]]
    assert pool.rows(rows[::-1], floats).tolist() == [[9.5, 10.5], [11.5, 12.5], [7.5, 8.5], [9.5, 10.5]]
    assert pool.rows([], floats).shape == (0, 2)


def test_rows_are_a_copy(pool: BlockPool) -> None:
    row = fill(pool, 7)
    floats = odd_layout().segments(Kind.HISTORY)[1]
    taken = pool.rows([row], floats)
    pool.view(row)[:] = bytes(19)
    assert taken[0].tolist() == [7.5, 8.5]


def test_a_slot_gives_rows_at_an_offset_that_their_type_does_not_divide() -> None:
    states = StatePool(odd_layout(), slots=1)
    slot = states.take()
    assert slot is not None
    states.view(slot)[:] = b"\x05" + np.array([1.5, -2.0], np.float32).view(np.uint16)[1::2].tobytes()
    window, carry = odd_layout().segments(Kind.STATE)
    assert states.rows(slot, window).tolist() == [[5]]
    assert states.rows(slot, carry).tolist() == [[1.5], [-2.0]]


def test_a_block_is_exactly_a_history_records_payload(pool: BlockPool) -> None:
    row = pool.take()
    assert row is not None
    assert len(pool.view(row)) == odd_layout().payload_bytes(Kind.HISTORY) == 19


def test_a_run_ends_at_the_first_block_that_is_not_here(pool: BlockPool) -> None:
    keys = [bytes([place]) * 32 for place in range(4)]
    for index in (0, 1, 3):
        row = pool.publish_block(fill(pool, index), keys, index=index)
        pool.release(row)
    held = pool.acquire_run(keys)
    assert [pool.view(row)[0] for row in held] == [0, 1]
    pool.release_run(held)
    assert pool.free_rows == 4


def test_the_deepest_block_of_a_prefix_is_reclaimed_first(pool: BlockPool) -> None:
    keys = [bytes([place]) * 32 for place in range(4)]
    rows = [pool.publish_block(fill(pool, index), keys, index=index) for index in range(4)]
    pool.release_run(rows)
    assert pool.take() == rows[3]
    assert pool.take() == rows[2]
    assert len(pool.acquire_run(keys)) == 2


def test_the_states_of_a_prompt_are_found_by_the_tokens_that_they_stand_at() -> None:
    states = StatePool(odd_layout(), slots=3)
    keys = [bytes([place]) * 32 for place in range(4)]
    for index in (0, 2):
        slot = states.take()
        assert slot is not None
        states.release(states.publish(slot, keys[index]))
    assert states.positions(keys) == [BLOCK, 3 * BLOCK]
    assert states.positions(keys[:2]) == [BLOCK]
