"""Buffers that are lent again instead of allocated anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_service.buffers import SMALLEST_BYTES, BufferPool, rounded

MEBIBYTE = 1 << 20


def test_a_buffer_that_came_back_is_lent_again():
    pool = BufferPool(16 * MEBIBYTE)
    first = pool.take(2_000_000)
    memory = first.obj
    pool.give_back(first)
    assert pool.take(1_971_456).obj is memory, "another size of the same step"
    assert pool.take(1_971_456).obj is not memory


def test_a_view_that_was_given_back_is_of_no_more_use():
    pool = BufferPool(16 * MEBIBYTE)
    view = pool.take(2_000_000)
    pool.give_back(view)
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


@given(st.integers(1, 1 << 30))
def test_a_buffer_is_little_larger_than_asked_for(size_bytes):
    room_bytes = rounded(size_bytes)
    assert size_bytes <= room_bytes <= size_bytes * 9 / 8
    assert rounded(room_bytes) == room_bytes


sizes = st.integers(1, 3 * MEBIBYTE)


@given(st.lists(st.one_of(sizes, st.none()), max_size=60))
def test_what_is_kept_stays_within_the_bound_whatever_is_taken_and_given_back(steps):
    """None gives the oldest back; at most 8 MiB are asked for at once, as the budget sees to."""
    pool, lent = BufferPool(10 * MEBIBYTE), []
    for size_bytes in steps:
        if size_bytes is not None and sum(map(len, lent)) + size_bytes <= 8 * MEBIBYTE:
            view = pool.take(size_bytes)
            assert len(view) == size_bytes
            assert all(view.obj is not other.obj for other in lent)
            lent.append(view)
        elif lent:
            pool.give_back(lent.pop(0))
        assert pool.lent_bytes == sum(len(view.obj) for view in lent)
        assert pool.lent_bytes + pool.free_bytes <= pool.total_bytes
    while lent:
        pool.give_back(lent.pop())
    assert pool.lent_bytes == 0


def test_buffers_of_a_size_that_is_no_longer_used_make_way():
    pool = BufferPool(8 * MEBIBYTE)
    for view in [pool.take(MEBIBYTE) for _ in range(8)]:
        pool.give_back(view)
    large = pool.take(7 * MEBIBYTE)
    assert pool.free_bytes + pool.lent_bytes <= pool.total_bytes
    pool.give_back(large)
    assert pool.free_bytes <= pool.total_bytes


def test_small_ones_are_not_kept():
    pool = BufferPool(8 * MEBIBYTE)
    pool.give_back(pool.take(SMALLEST_BYTES - 1))
    assert (pool.lent_bytes, pool.free_bytes) == (0, 0)
