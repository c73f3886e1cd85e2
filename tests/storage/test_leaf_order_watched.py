"""Leaf first, whoever works at once: a tree that grows at random, and a thread that watches it."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.store import RecordKey
from kvcairn_storage.testing import LAYOUT, SECONDS, make_record, make_state
from watching import watching

PAGE = 4096
BLOCK = 128
WRITERS = 4


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PrefixStore]:
    store = PrefixStore(LmdbStore(tmp_path / "data", map_bytes=64 << 20), capacity_bytes=40 * PAGE)
    yield store
    assert store.check_integrity() == []
    store.close()


class Grove:
    """Every block that was ever stored, by its key, with the key of the one before it; no key is stored twice.

    So a block that is seen at two moments was there all the time between them, and what was seen beside its parent once
    must never be seen without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self.parents: dict[bytes, bytes | None] = {}
        self.depths: dict[bytes, int] = {}

    def sprout(self, dice: random.Random) -> NewRecord:
        """A new block behind a recent one, or a new first block."""
        with self._lock:
            self._number += 1
            key = self._number.to_bytes(4, "big") * 8
            recent = list(self.parents)[-30:]
            parent = dice.choice(recent) if recent and dice.random() < 0.9 else None
            self.parents[key] = parent
            self.depths[key] = 1 + (self.depths[parent] if parent is not None else 0)
            position = self.depths[key] * BLOCK
        return make_record(key=key, position=position, parent=parent[:16] if parent is not None else bytes(16))

    def path(self, key: bytes) -> list[bytes]:
        path = [key]
        while (parent := self.parents[path[-1]]) is not None:
            path.append(parent)
        return path[::-1]


def name(kind: Kind, key: bytes) -> RecordKey:
    return RecordKey("t", LAYOUT, kind, key)


class Watcher:
    """What was seen beside what it needs, and what was seen without it later: a block's parent, a state's block."""

    def __init__(self, store: PrefixStore, grove: Grove) -> None:
        self._store = store
        self._grove = grove
        self.linked: set[tuple[Kind, bytes]] = set()
        self.orphans: list[str] = []

    def look(self) -> None:
        """`exists` shows one moment: it is asked for all records that there ever were, at once."""
        known = dict(self._grove.parents)
        asked = [(kind, key) for kind in (Kind.HISTORY, Kind.STATE) for key in known]
        served = self._store.exists([name(kind, key) for kind, key in asked])
        there = {each for each, is_there in zip(asked, served, strict=True) if is_there}
        for kind, key in there:
            needed = known[key] if kind is Kind.HISTORY else key
            if needed is None:
                continue
            if (Kind.HISTORY, needed) in there:
                self.linked.add((kind, key))
            elif (kind, key) in self.linked:
                self.orphans.append(f"{kind.label} {key.hex()[:8]} without {needed.hex()[:8]}")


def work(store: PrefixStore, grove: Grove, steps: int, seed: int) -> Counter[str]:
    """Store, use, hold, pin and expire at random."""
    dice, outcomes = random.Random(seed), Counter[str]()
    for step in range(steps):
        block = grove.sprout(dice)
        batch = [block, make_state(block)] if dice.random() < 0.3 else [block]
        outcomes.update(str(each.outcome) for each in store.put(batch).result(SECONDS))
        path = grove.path(block.header.key)
        if step % 3 == seed % 3:
            store.touch([name(Kind.HISTORY, dice.choice(path))])
        if dice.random() < 0.2:
            with store.hold([name(Kind.HISTORY, key) for key in path]):
                outcomes["held"] += 1
        if dice.random() < 0.2:
            outcomes["pinned"] += pinned_for_a_while(store, path, pin_id=str(seed))
        if dice.random() < 0.05:
            outcomes["expired"] += store.expire(tenant="t", idle_seconds=0.01)
    return outcomes


@pytest.mark.parametrize("steps", [60, pytest.param(1500, marks=pytest.mark.torture)])
def test_no_block_is_ever_seen_without_a_parent_that_was_seen_beside_it(store: PrefixStore, steps: int) -> None:
    grove = Grove()
    watcher = Watcher(store, grove)
    with watching(watcher.look) as seen, ThreadPoolExecutor(WRITERS) as pool:
        outcomes = sum(pool.map(partial(work, store, grove, steps), range(WRITERS)), Counter[str]())
    assert watcher.orphans == []
    assert seen["looks"] > 10
    assert len(watcher.linked) > steps // 2
    assert min(outcomes["pinned"], outcomes["held"]) > steps // 10
    assert sum(usage.evicted_records + usage.expired_records for usage in store.usage()) > steps


def pinned_for_a_while(store: PrefixStore, path: list[bytes], *, pin_id: str) -> bool:
    """Pin what is there of a path, see that it stays whatever the others do, and let it go."""
    done = store.pins.pin(
        tenant="t", layout=LAYOUT, pin_id=pin_id, keys=path, block_tokens=BLOCK, limit_bytes=10 * PAGE
    )
    if done.pin is None or done.obstacle is not None:
        return False
    for _ in range(5):
        assert all(store.exists(done.pin.record_keys()))
    assert store.pins.unpin("t", pin_id)
    return True
