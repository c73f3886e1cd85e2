"""A session that one thread closes while another restores or forks it."""

import threading
from collections.abc import Callable

import pytest

from kvcairn_client.errors import ClosedClient
from kvcairn_client.model_layout import describe
from kvcairn_client.pools import BlockPool, StatePool
from kvcairn_client.sessions import Pools, Session, snapshot
from kvcairn_client.slab import Slab
from tiny_models import differences, make_model, make_prompt, uninterrupted

STEP = 128


class Meddled(StatePool):
    """A pool that lets another thread act at the worst moment: when a slot is about to be held, or read."""

    meddle: Callable[[], None] | None = None

    def hold(self, row: int) -> int:
        self._let_them()
        return super().hold(row)

    def rows(self, *args, **options):  # type: ignore[no-untyped-def]
        self._let_them()
        return super().rows(*args, **options)

    def _let_them(self) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            other = threading.Thread(target=meddle)
            other.start()
            # Where a lock keeps the other out until this is done, waiting for it would never end.
            other.join(0.2)


@pytest.fixture
def pools() -> Pools:
    """Room for two sessions of three blocks, so that rows given back are taken at once."""
    model_cache = describe(make_model(), model_id="tiny", block_tokens=STEP)
    blocks = BlockPool(model_cache.layout, capacity_blocks=6)
    return Pools(model_cache, blocks, Meddled(model_cache.slot_layout, slots=2))


def close_and_overwrite(session: Session, pools: Pools) -> Callable[[], None]:
    def act() -> None:
        session.close()
        other, _ = uninterrupted(make_model(), make_prompt(300, seed=9), step=STEP)
        snapshot(pools, other).close()

    return act


@pytest.mark.parametrize("verb", ["fork", "restore"])
def test_a_close_at_the_worst_moment_gives_the_right_bytes(pools: Pools, verb: str) -> None:
    live, _ = uninterrupted(make_model(), make_prompt(300), step=STEP)
    session = snapshot(pools, live)
    assert isinstance(pools.states, Meddled)
    pools.states.meddle = close_and_overwrite(session, pools)
    if verb == "fork":
        with session.fork() as held:
            restored = held.restore()
    else:
        restored = session.restore()
    assert differences(restored, live) == []
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(20)
    for pool in (pools.blocks, pools.states):
        pool.check_integrity()
        assert pool.free_rows == pool.capacity
    with pytest.raises(ClosedClient):
        session.restore()


def test_a_row_that_was_given_back_cannot_be_held() -> None:
    slab = Slab(rows=2, row_bytes=4)
    row = slab.take()
    assert row is not None
    slab.release(row)
    with pytest.raises(ValueError, match=f"row {row} is neither held nor idle"):
        slab.hold(row)
    slab.check_integrity()
