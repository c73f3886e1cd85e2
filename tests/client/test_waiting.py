"""What waits to be stored: bounded, in order, each record once; history outlives states."""

from hypothesis import given
from hypothesis import strategies as st

import client_samples as samples
from kvcairn_client.records import Outgoing
from kvcairn_client.waiting import Item, WaitingRecords
from kvcairn_protocol.layout import Kind

LAYOUT, OTHER = samples.layout(), samples.layout("org/model@2")
HISTORY_BYTES, STATE_BYTES = LAYOUT.payload_bytes(Kind.HISTORY), LAYOUT.payload_bytes(Kind.STATE)


def item(kind: Kind, index: int, *, used: object = LAYOUT, codec: str = "auto") -> Item:
    return Item(used, samples.outgoing(LAYOUT, kind, index), codec)  # type: ignore[arg-type]


def names(batch: list[Item]) -> list[tuple[Kind, int]]:
    index_of = {samples.key(index): index for index in range(64)}
    return [(each.record.kind, index_of[each.record.key]) for each in batch]


def test_what_came_first_goes_first() -> None:
    waiting = WaitingRecords(1 << 20)
    for index in (3, 1, 2):
        assert waiting.add(item(Kind.HISTORY, index))
    assert names(waiting.take(at_most_bytes=1 << 20)) == [(Kind.HISTORY, 3), (Kind.HISTORY, 1), (Kind.HISTORY, 2)]


def test_a_record_that_waits_or_is_under_way_is_not_taken_again() -> None:
    waiting = WaitingRecords(1 << 20)
    assert waiting.add(item(Kind.HISTORY, 0))
    assert not waiting.add(item(Kind.HISTORY, 0))
    batch = waiting.take(at_most_bytes=1 << 20)
    assert not waiting.add(item(Kind.HISTORY, 0))
    waiting.release(batch)
    assert waiting.add(item(Kind.HISTORY, 0))
    assert waiting.dropped == 0


def test_one_key_of_two_kinds_or_layouts_is_two_records() -> None:
    waiting = WaitingRecords(1 << 20)
    assert waiting.add(item(Kind.HISTORY, 0))
    assert waiting.add(item(Kind.STATE, 0))
    assert waiting.add(item(Kind.HISTORY, 0, used=OTHER))


def test_a_body_has_one_layout_one_codec_and_a_size() -> None:
    waiting = WaitingRecords(1 << 20)
    for each in (
        item(Kind.HISTORY, 0),
        item(Kind.HISTORY, 1),
        item(Kind.HISTORY, 2),
        item(Kind.HISTORY, 3, codec="raw"),
        item(Kind.HISTORY, 4, used=OTHER),
    ):
        waiting.add(each)
    sizes = []
    while batch := waiting.take(at_most_bytes=2 * HISTORY_BYTES):
        sizes.append(len(batch))
        waiting.release(batch)
    assert sizes == [2, 1, 1, 1]
    assert waiting.is_idle


def test_a_record_larger_than_a_body_goes_alone() -> None:
    waiting = WaitingRecords(1 << 20)
    waiting.add(item(Kind.HISTORY, 0))
    waiting.add(item(Kind.HISTORY, 1))
    assert names(waiting.take(at_most_bytes=1)) == [(Kind.HISTORY, 0)]


def test_the_newest_states_give_way_to_history() -> None:
    waiting = WaitingRecords(2 * STATE_BYTES + HISTORY_BYTES)
    for each in (item(Kind.STATE, 0), item(Kind.HISTORY, 0), item(Kind.STATE, 1)):
        assert waiting.add(each)
    assert waiting.add(item(Kind.HISTORY, 1))
    assert names(waiting.take(at_most_bytes=1 << 20)) == [(Kind.STATE, 0), (Kind.HISTORY, 0), (Kind.HISTORY, 1)]
    assert waiting.dropped == 1


def test_history_gives_way_to_nothing() -> None:
    waiting = WaitingRecords(2 * HISTORY_BYTES)
    waiting.add(item(Kind.HISTORY, 0))
    waiting.add(item(Kind.HISTORY, 1))
    assert not waiting.add(item(Kind.STATE, 1))
    assert not waiting.add(item(Kind.HISTORY, 2))
    assert names(waiting.take(at_most_bytes=1 << 20)) == [(Kind.HISTORY, 0), (Kind.HISTORY, 1)]
    assert waiting.dropped == 2


def test_no_state_is_dropped_for_history_that_does_not_fit_all_the_same() -> None:
    waiting = WaitingRecords(HISTORY_BYTES + STATE_BYTES)
    waiting.add(item(Kind.HISTORY, 0))
    waiting.take(at_most_bytes=1 << 20)
    waiting.add(item(Kind.STATE, 0))
    big = samples.layout(row_bytes=2048)
    assert not waiting.add(Item(big, samples.outgoing(big, Kind.HISTORY, 1), "auto"))
    assert names(waiting.take(at_most_bytes=1 << 20)) == [(Kind.STATE, 0)]


def test_bytes_under_way_count_until_they_are_released() -> None:
    waiting = WaitingRecords(HISTORY_BYTES)
    waiting.add(item(Kind.HISTORY, 0))
    batch = waiting.take(at_most_bytes=1 << 20)
    assert not waiting.add(item(Kind.HISTORY, 1))
    waiting.release(batch)
    assert waiting.add(item(Kind.HISTORY, 1))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(list(Kind)), st.integers(0, 12)),
        st.tuples(st.just("take"), st.just(Kind.STATE), st.integers(1, 4)),
        st.tuples(st.just("release"), st.just(Kind.STATE), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 6))
def test_the_account_is_right_after_any_steps(steps: list[tuple[str, Kind, int]], room: int) -> None:
    """held_bytes is what waits and what is under way, never over the bound; nothing is lost but what was dropped."""
    waiting = WaitingRecords(room * STATE_BYTES)
    under_way: list[list[Item]] = []
    accepted = refused = duplicates = finished = 0
    for what, kind, number in steps:
        if what == "add":
            before = waiting.dropped
            if waiting.add(item(kind, number)):
                accepted += 1
            elif waiting.dropped > before:
                refused += 1
            else:
                duplicates += 1
        elif what == "take":
            under_way.append(waiting.take(at_most_bytes=number * HISTORY_BYTES))
        elif under_way:
            finished += len(under_way[0])
            waiting.release(under_way.pop(0))
        held = [each for batch in under_way for each in batch]
        assert 0 <= waiting.held_bytes <= waiting.max_bytes
        assert accepted == len(waiting) + len(held) + finished + (waiting.dropped - refused)
    for batch in under_way:
        waiting.release(batch)
    rest = waiting.take(at_most_bytes=1 << 30)
    waiting.release(rest)
    assert waiting.held_bytes == 0
    assert waiting.is_idle


def test_records_compare_by_name_not_by_bytes() -> None:
    record: Outgoing = samples.outgoing(LAYOUT, Kind.HISTORY, 0)
    assert Item(LAYOUT, record, "auto").ident == Item(LAYOUT, record._replace(payload=b"x"), "raw").ident
