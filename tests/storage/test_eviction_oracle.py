"""Which record goes, against a plain reading of the rules: a list of records, searched from end to end each time."""

import random
from dataclasses import dataclass

import pytest

from kvcairn_protocol.layout import Kind
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import NewRecord, PrefixStore
from kvcairn_storage.testing import SECONDS, make_chain, make_state

PAGE = 4096
CAPACITY = 20
CHAINS, DEPTH = 5, 8


@dataclass
class Kept:
    """One record of one page. used: a number that grows with every use."""

    kind: Kind
    key: bytes
    parent: bytes
    position: int
    used: int = 0


class Rules:
    """One tenant, one layout, records of one page each, one put at a time."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.moments = 0

    def find(self, kind: Kind, key: bytes) -> Kept | None:
        return next((each for each in self.kept if (each.kind, each.key) == (kind, key)), None)

    def use(self, record: Kept) -> None:
        self.moments += 1
        record.used = self.moments
        above = [each for each in self.kept if each.kind is Kind.HISTORY and each.key[:16] == record.parent]
        if record.kind is Kind.HISTORY and above:
            self.use(above[0])

    def put(self, record: Kept) -> None:
        known = self.find(record.kind, record.key)
        if known is None:
            self.kept.append(record)
            while len(self.kept) > CAPACITY:
                victim = self.victim(record)
                if victim is None:
                    self.kept.remove(record)
                    return
                self.remove(victim)
        self.use(known or record)

    def victim(self, incoming: Kept) -> Kept | None:
        windows = [each for each in self.kept if each.kind is Kind.WINDOW and each is not incoming]
        if windows:
            return min(windows, key=lambda each: each.used)
        states = [each for each in self.kept if each.kind is Kind.STATE and each is not incoming]
        leaves = [each for each in self.kept if each is not incoming and self.is_free_leaf(each, incoming)]
        count = {kind: sum(each.kind is kind for each in self.kept) for kind in Kind}
        if incoming.kind is not Kind.STATE and count[Kind.STATE] - 1 < CAPACITY / 10:
            states = []
        if incoming.kind is not Kind.HISTORY and count[Kind.HISTORY] - 1 < CAPACITY / 2:
            leaves = []
        if incoming.kind is Kind.STATE and count[Kind.STATE] <= CAPACITY / 10 and leaves:
            states = []
        if incoming.kind is Kind.HISTORY and count[Kind.HISTORY] <= CAPACITY / 2 and states:
            leaves = []
        return min(states + leaves, key=lambda each: each.used, default=None)

    def is_free_leaf(self, block: Kept, incoming: Kept) -> bool:
        continued = any(each.kind is Kind.HISTORY and each.parent == block.key[:16] for each in self.kept)
        return block.kind is Kind.HISTORY and not continued and block.key != incoming.key

    def remove(self, victim: Kept) -> None:
        gone = [victim]
        if victim.kind is Kind.HISTORY:
            gone = [each for each in self.kept if each.key == victim.key]
        self.kept = [each for each in self.kept if each not in gone]


def record_at(chain: int, depth: int, kind: Kind) -> NewRecord:
    """Every chain shares its first two blocks with all others."""
    path = [bytes([1 + (chain if at > 1 else 0), at]) * 16 for at in range(depth + 1)]
    block = make_chain(path)[-1]
    return block if kind is Kind.HISTORY else make_state(block, kind=kind)


MIXES = [(1, 9, 0), (3, 9, 0), (1, 1, 0), (9, 1, 0), (3, 1, 1), (1, 3, 1), (9, 9, 1)]


@pytest.mark.parametrize("weights", MIXES)
def test_exactly_the_records_go_that_the_rules_name(weights: tuple[int, int, int]) -> None:
    """Mixes of history, states and windows, so that each kind meets its share from above and from below."""
    dice = random.Random(f"mix {weights}")
    store, rules = PrefixStore(MemoryStore(), capacity_bytes=CAPACITY * PAGE), Rules()
    keys = [record_at(chain, depth, kind).key for chain in range(CHAINS) for depth in range(DEPTH) for kind in Kind]
    for _ in range(500):
        (kind,) = dice.choices(list(Kind), weights)
        record = record_at(dice.randrange(CHAINS), dice.randrange(DEPTH), kind)
        header = record.header
        known = rules.find(kind, header.key)
        if known is not None and dice.random() < 0.7:
            store.touch([record.key])
            rules.use(known)
        else:
            store.put([record]).result(SECONDS)
            rules.put(Kept(kind, header.key, header.parent, header.position))
        there = {(key.kind, key.key) for key, here in zip(keys, store.exists(keys), strict=True) if here}
        assert there == {(each.kind, each.key) for each in rules.kept}
    assert sum(usage.evicted_records for usage in store.usage()) > 30
    store.close()
