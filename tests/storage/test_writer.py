"""GroupWriter: what waits is committed together, in order, and fails alone."""

import threading
from collections.abc import Callable, Sequence

import pytest

from kvcairn_storage.errors import StoreClosed, StoreFull, StoreUnreadable
from kvcairn_storage.testing import SECONDS
from kvcairn_storage.writer import MAX_GROUP_BYTES, GroupWriter

Work = Callable[[list[str]], object]


class Ledger:
    """A transaction is a list of names; committing appends it, if nothing in it raises."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.rooms_made = 0
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, works: Sequence[Work]) -> list[object]:
        self.gate.wait(SECONDS)
        names: list[str] = []
        results = [work(names) for work in works]
        self.groups.append(names)
        return results

    def make_room(self) -> None:
        self.rooms_made += 1


def named(name: str, error: Exception | None = None) -> Work:
    def work(names: list[str]) -> str:
        if error is not None:
            raise error
        names.append(name)
        return name.upper()

    return work


def behind_a_gate(ledger: Ledger, writer: "GroupWriter[list[str]]") -> None:
    """Hold the writer up with one job that is a group by itself, so that everything after it waits together."""
    ledger.gate.clear()
    writer.submit(named("first"), size_bytes=MAX_GROUP_BYTES)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_what_waits_is_one_group_in_order_and_each_gets_its_result(ledger: Ledger) -> None:
    writer = GroupWriter(ledger.commit, make_room=ledger.make_room)
    behind_a_gate(ledger, writer)
    answers = [writer.submit(named(name), size_bytes=10) for name in "abcde"]
    ledger.gate.set()
    assert [answer.result(SECONDS) for answer in answers] == list("ABCDE")
    writer.close()
    assert ledger.groups == [["first"], list("abcde")]


def test_a_group_ends_at_its_largest_size(ledger: Ledger) -> None:
    writer = GroupWriter(ledger.commit, make_room=ledger.make_room)
    behind_a_gate(ledger, writer)
    answers = [writer.submit(named(name), size_bytes=MAX_GROUP_BYTES // 2) for name in "abcd"]
    ledger.gate.set()
    assert [answer.result(SECONDS) for answer in answers] == list("ABCD")
    writer.close()
    assert ledger.groups == [["first"], ["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("error", [StoreUnreadable("broken"), ValueError("a bug")])
def test_what_fails_fails_alone(ledger: Ledger, error: Exception) -> None:
    writer = GroupWriter(ledger.commit, make_room=ledger.make_room)
    behind_a_gate(ledger, writer)
    good, bad, also_good = (writer.submit(named(*each), size_bytes=1) for each in (("a",), ("b", error), ("c",)))
    ledger.gate.set()
    assert (good.result(SECONDS), also_good.result(SECONDS)) == ("A", "C")
    assert bad.exception(SECONDS) is error
    writer.close()
    assert [name for group in ledger.groups for name in group] == ["first", "a", "c"]


def test_a_full_store_gets_one_more_chance_after_room_was_made(ledger: Ledger) -> None:
    writer = GroupWriter(ledger.commit, make_room=ledger.make_room)

    def fits_after_room(names: list[str]) -> str:
        if not ledger.rooms_made:
            raise StoreFull("no space")
        return named("late")(names)  # type: ignore[return-value]

    assert writer.submit(fits_after_room, size_bytes=1).result(SECONDS) == "LATE"
    assert isinstance(writer.submit(named("x", StoreFull("no")), size_bytes=1).exception(SECONDS), StoreFull)
    assert ledger.rooms_made == 2
    writer.close()


def test_closing_commits_what_was_submitted_and_refuses_the_rest(ledger: Ledger) -> None:
    writer = GroupWriter(ledger.commit, make_room=ledger.make_room)
    answers = [writer.submit(named(str(index)), size_bytes=1) for index in range(50)]
    writer.close()
    writer.close()
    assert [answer.result(0) for answer in answers] == [str(index) for index in range(50)]
    assert isinstance(writer.submit(named("late"), size_bytes=1).exception(0), StoreClosed)


def test_nobody_can_cancel_a_write_under_the_writer(ledger: Ledger) -> None:
    writer = GroupWriter(ledger.commit, make_room=ledger.make_room)
    behind_a_gate(ledger, writer)
    answer = writer.submit(named("a"), size_bytes=1)
    assert not answer.cancel()
    ledger.gate.set()
    assert answer.result(SECONDS) == "A"
    writer.close()
