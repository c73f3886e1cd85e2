"""Lookups: the longest run and the states inside it, in memory and in time linear in the run."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcairn_protocol.layout import Kind
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import LAYOUT, SECONDS, make_chain, make_record, make_state

KEYS = [bytes([index + 1]) * 32 for index in range(8)]


def run(store: PrefixStore, keys: list[bytes] = KEYS, tenant: str = "t") -> tuple[int, list[int]]:
    found = store.longest_run(tenant=tenant, layout=LAYOUT, keys=keys, block_tokens=128)
    return found.history_blocks, found.state_tokens


def test_a_run_ends_at_the_first_missing_block(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    store.put([*chain[:3], *chain[4:]]).result(SECONDS)
    assert run(store) == (3, [])
    store.put(chain[3:4]).result(SECONDS)
    assert run(store) == (8, [])
    assert run(store, KEYS[1:]) == (0, [])
    assert run(store, []) == (0, [])
    assert run(store, tenant="other") == (0, [])


def test_a_block_at_another_position_ends_the_run(store: PrefixStore) -> None:
    store.put([*make_chain(KEYS[:2]), make_record(key=KEYS[2], position=512, parent=b"x" * 16)]).result(SECONDS)
    assert run(store) == (2, [])


def test_states_are_listed_deepest_first_only_inside_the_run_and_at_its_positions(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    misplaced = make_record(key=KEYS[2], position=128, kind=Kind.STATE)
    states = [make_state(chain[0]), make_state(chain[1]), misplaced, make_state(chain[3]), make_state(chain[6])]
    store.put([*chain[:5], *states]).result(SECONDS)
    assert run(store) == (5, [512, 256, 128])


def test_a_missing_state_does_not_veto_the_history(store: PrefixStore) -> None:
    chain = make_chain(KEYS)
    states = [make_state(block) for block in chain]
    store.put([*chain, *states]).result(SECONDS)
    store.delete(states[-1].key)
    store.delete(states[5].key)
    assert run(store) == (8, [896, 640, 512, 384, 256, 128])


def test_an_entry_is_a_copy(store: PrefixStore) -> None:
    (block,) = make_chain(KEYS[:1])
    store.put([block]).result(SECONDS)
    entry = store.entry(block.key)
    assert entry is not None
    assert (entry.position, entry.parent, entry.block_tokens, entry.raw_bytes, entry.uses) == (
        128,
        bytes(16),
        128,
        7,
        0,
    )
    entry.position = 77
    assert run(store) == (1, [])
    assert store.entry(block.key._replace(key=bytes(32))) is None


def test_looking_up_is_no_use(store: PrefixStore) -> None:
    (block,) = make_chain(KEYS[:1])
    store.put([block]).result(SECONDS)
    run(store)
    store.exists([block.key])
    store.get(block.key)
    with store.views([block.key]):
        pass
    assert [(usage.uses, usage.reused_records) for usage in store.usage()] == [(0, 0)]


@settings(deadline=None)
@given(
    stored=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), unique_by=lambda item: item[0]),
    states=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), unique_by=lambda item: item[0]),
)
def test_the_run_is_what_a_plain_dictionary_says(stored: list[tuple[int, int]], states: list[tuple[int, int]]) -> None:
    """Blocks and states anywhere; the parents name nobody, so that any position is allowed."""
    store = PrefixStore(MemoryStore(), capacity_bytes=1 << 20)
    for kind, items in ((Kind.HISTORY, stored), (Kind.STATE, states)):
        records = [
            make_record(key=KEYS[at], position=blocks * 128, parent=b"?" * 16 if blocks > 1 else bytes(16), kind=kind)
            for at, blocks in items
        ]
        store.put(records).result(SECONDS)
    history, length = dict(stored), 0
    while history.get(length) == length + 1:
        length += 1
    expected = sorted((blocks * 128 for at, blocks in states if at < length and blocks == at + 1), reverse=True)
    assert run(store) == (length, expected)
    store.close()
