"""The accounting of the pools: against a plain model, and the rules that it must keep."""

import threading
from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcairn_client.slab import Slab

CAPACITY = 4
NAMES = [bytes([letter]) * 32 for letter in b"abcdef"]


def put(slab: Slab, key: bytes, *, parent: bytes = b"") -> int:
    row = slab.take()
    assert row is not None
    row = slab.publish(row, key, parent=parent)
    slab.release(row)
    return row


def test_what_was_published_is_found_with_its_bytes() -> None:
    slab = Slab(rows=2, row_bytes=5)
    row = slab.take()
    assert row is not None
    slab.view(row)[:] = b"hello"
    slab.publish(row, NAMES[0])
    slab.release(row)
    assert slab.acquire(NAMES[0]) == row
    assert bytes(slab.view(row)) == b"hello"
    assert slab.acquire(NAMES[1]) is None


def test_a_held_row_is_never_reclaimed() -> None:
    slab = Slab(rows=2, row_bytes=1)
    held = slab.take()
    assert held is not None
    slab.publish(held, NAMES[0])
    other = slab.take()
    assert slab.take() is None
    assert other is not None
    slab.release(other)
    assert slab.take() == other
    assert NAMES[0] in slab


def test_the_row_that_was_used_longest_ago_is_reclaimed_first() -> None:
    slab = Slab(rows=3, row_bytes=1)
    for name in NAMES[:3]:
        put(slab, name)
    row = slab.acquire(NAMES[0])
    assert row is not None
    slab.release(row)
    put(slab, NAMES[3])
    assert [name in slab for name in NAMES[:4]] == [True, False, True, True]


def test_a_parent_is_reclaimed_after_its_children_even_if_it_was_used_before_them() -> None:
    slab = Slab(rows=3, row_bytes=1)
    put(slab, NAMES[0])
    put(slab, NAMES[1], parent=NAMES[0])
    put(slab, NAMES[2], parent=NAMES[1])
    for left in (2, 1, 0):
        row = slab.take()
        assert row is not None
        assert [name in slab for name in NAMES[:3]] == [place < left for place in range(3)]
    slab.check_integrity()


def test_the_first_writer_of_a_key_wins_and_the_second_row_is_free_again() -> None:
    slab = Slab(rows=2, row_bytes=1)
    first, second = slab.take(), slab.take()
    assert first is not None
    assert second is not None
    assert slab.publish(first, NAMES[0]) == first
    assert slab.publish(second, NAMES[0]) == first
    assert slab.take() == second
    slab.check_integrity()


def test_a_pool_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row; found 0"):
        Slab(rows=0, row_bytes=1)


def test_a_row_cannot_be_released_more_often_than_it_was_held() -> None:
    slab = Slab(rows=2, row_bytes=1)
    row = slab.take()
    assert row is not None
    slab.release(row)
    with pytest.raises(ValueError, match="released more often"):
        slab.release(row)
    slab.check_integrity()


def test_threads_that_share_a_pool_never_share_a_row_that_is_being_written() -> None:
    slab = Slab(rows=3, row_bytes=1)
    torn: list[bytes] = []

    def work(seed: int) -> None:
        for turn in range(300):
            name = NAMES[(seed + turn) % len(NAMES)]
            row = slab.acquire(name)
            if row is None:
                row = slab.take()
                if row is None:
                    continue
                slab.view(row)[:] = name[:1]
                row = slab.publish(row, name)
            if bytes(slab.view(row)) != name[:1]:
                torn.append(name)
            slab.release(row)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torn == []
    slab.check_integrity()
    assert slab.free_rows == 3


class SlabMachine(RuleBasedStateMachine):
    """The same steps on a Slab and on a model: who holds which key, and which idle keys were used when."""

    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(rows=CAPACITY, row_bytes=1)
        self.held: list[tuple[bytes, int]] = []
        self.idle: OrderedDict[bytes, None] = OrderedDict()

    def is_known(self, key: bytes) -> bool:
        return key in self.idle or any(key == name for name, _ in self.held)

    @rule(key=st.sampled_from(NAMES))
    def publish(self, key: bytes) -> None:
        in_use = len({row for _, row in self.held}) + len(self.idle)
        expected = in_use < CAPACITY or bool(self.idle)
        row = self.slab.take()
        assert (row is not None) == expected
        if row is None:
            return
        if in_use == CAPACITY:
            self.idle.popitem(last=False)
        row = self.slab.publish(row, key)
        self.idle.pop(key, None)
        self.held.append((key, row))

    @rule(key=st.sampled_from(NAMES))
    def acquire(self, key: bytes) -> None:
        row = self.slab.acquire(key)
        assert (row is not None) == self.is_known(key)
        if row is not None:
            self.idle.pop(key, None)
            self.held.append((key, row))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key, row = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.slab.release(row)
        if not any(key == name for name, _ in self.held):
            self.idle[key] = None

    @invariant()
    def counts_agree(self) -> None:
        self.slab.check_integrity()
        assert len(self.slab) == len(self.idle) + len({name for name, _ in self.held})


TestSlabAgainstAModel = SlabMachine.TestCase
TestSlabAgainstAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
