"""The reader of a body of records, the memory that uploads share, and how slow a peer may be."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.errors import RecordError, TrailingBytes, TruncatedRecord, WrongKey
from kvcairn_protocol.layout import Kind, parse_layout
from kvcairn_service.bodies import PieceBody
from kvcairn_service.memory import MemoryBudget
from kvcairn_service.pace import Pace
from kvcairn_service.receive import Announced, Received, RecordReader, Refused
from kvcairn_service.routes.record import NamedBody
from kvcairn_storage.store import RecordKey
from service_samples import HISTORY, canonical, chain, chain_records, fingerprint, layout_document, record

DOCUMENT = layout_document(model="parser")
LAYOUT = parse_layout(canonical(DOCUMENT))
KEYS = chain(DOCUMENT, 6)
RECORDS = chain_records(DOCUMENT, KEYS)


async def in_pieces(pieces):
    for piece in pieces:
        yield piece


def new_reader(pieces, max_record_bytes=1 << 20, max_records=1000, note_bytes=lambda _: None):
    return RecordReader(
        PieceBody(in_pieces(pieces)),
        {fingerprint(DOCUMENT): LAYOUT}.get,
        note_bytes,
        max_record_bytes=max_record_bytes,
        max_records=max_records,
    )


async def read_all(reader):
    events = []
    while (found := await reader.next()) is not None:
        if isinstance(found, Announced):
            found = await reader.fill(found, memoryview(bytearray(found.header.record_bytes)))
        events.append(found)
    return events


def parse(pieces, **bounds):
    """Everything that a reader says of a body, its end included."""
    return asyncio.run(read_all(new_reader(pieces, **bounds)))


def received(events):
    return [bytes(event.data) for event in events if isinstance(event, Received)]


def refused(events):
    return [(event.index, event.key, event.reason) for event in events if isinstance(event, Refused)]


def cut_at(body, places):
    edges = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(min_value=0, max_value=10_000), max_size=30))
def test_the_same_records_come_out_however_the_body_is_cut(places):
    body = b"".join(RECORDS)
    assert received(parse(cut_at(body, places))) == RECORDS


BAD = record(DOCUMENT, 4, KEYS[0], position=8, payload=b"x" * 40)


@given(
    st.lists(st.sampled_from([*RECORDS, BAD]), max_size=8),
    st.lists(st.integers(min_value=0, max_value=10_000), max_size=10),
    st.integers(min_value=0, max_value=200),
)
def test_bad_records_are_skipped_and_a_cut_end_is_reported(chosen, places, cut):
    body = b"".join(chosen)
    body = body[: max(0, len(body) - cut)]
    good, bad, at, whole = [], [], 0, True
    for index, each in enumerate(chosen):
        rest = body[at : at + len(each)]
        if each is BAD and len(rest) >= 128:
            bad.append((index, KEYS[0].hex(), "kind"))
        elif len(rest) < len(each):
            if rest:
                bad.append((index, None, "framing"))
            whole = False
            break
        else:
            good.append(each)
        at += len(each)
    events = parse(cut_at(body, places))
    assert received(events) == good
    assert refused(events) == bad
    assert whole or len(body) < sum(map(len, chosen))


@given(st.binary(max_size=600))
def test_no_garbage_is_ever_taken_for_a_record(garbage):
    events = parse([garbage])
    assert received(events) == []


def test_every_flipped_bit_is_refused_by_header_or_checksum():
    whole = RECORDS[1]
    for bit in range(len(whole) * 8):
        spoiled = bytearray(whole)
        spoiled[bit // 8] ^= 1 << (bit % 8)
        events = parse([bytes(spoiled)])
        taken = [event for event in events if isinstance(event, Received)]
        if taken:
            with pytest.raises(RecordError):
                taken[0].verify()
        else:
            assert refused(events)[0][0] == 0, bit


def test_memory_is_asked_for_after_the_header_and_before_the_payload():
    async def scenario():
        reader = new_reader([RECORDS[0][:128], RECORDS[0][128:]])
        announced = await reader.next()
        assert isinstance(announced, Announced)
        assert announced.header.record_bytes == len(RECORDS[0])
        target = memoryview(bytearray(len(RECORDS[0])))
        whole = await reader.fill(announced, target)
        assert whole.data is target
        assert bytes(target) == RECORDS[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("claimed", [(1 << 20) + 1, 2**63, 2**64 - 1])
def test_a_length_over_the_limit_loses_the_framing_without_asking_for_memory(claimed):
    bad = record(DOCUMENT, HISTORY, KEYS[0], position=8, payload=b"", raw_bytes=claimed, stored_bytes=claimed)
    assert parse([bad, RECORDS[0]]) == [Refused(0, None, "framing")]


def test_a_body_of_too_many_records_is_lost_from_there_on():
    assert refused(parse(RECORDS, max_records=2)) == [(2, None, "framing")]
    assert received(parse(RECORDS[:2], max_records=2)) == RECORDS[:2]


def test_every_byte_that_is_taken_is_counted():
    counted = []
    parse([*RECORDS, BAD, b"x" * 50], note_bytes=counted.append)
    assert sum(counted) == sum(map(len, [*RECORDS, BAD])) + 50


def test_a_magic_that_is_wrong_loses_the_framing():
    assert refused(parse([RECORDS[0], b"KVC2" + RECORDS[1][4:], RECORDS[2]])) == [(1, None, "framing")]


class TestMemoryBudget:
    """First come, first served in each class, and nothing is ever lent twice. Of 64 bytes: small up to 2, reserve 8."""

    def test_what_does_not_fit_waits_in_order(self):
        async def scenario():
            budget, order = MemoryBudget(64), []

            async def take(name, size_bytes):
                await budget.acquire(size_bytes)
                order.append(name)

            await budget.acquire(50)
            tasks = [asyncio.create_task(take(name, size)) for name, size in (("large", 50), ("less", 6))]
            await asyncio.sleep(0)
            assert not budget.try_acquire(6), "nobody overtakes"
            budget.release(50)
            await asyncio.gather(*tasks)
            assert order == ["large", "less"]
            assert budget.used_bytes == 56

        asyncio.run(scenario())

    def test_small_ones_pass_a_large_one_that_waits_within_the_reserve(self):
        async def scenario():
            budget = MemoryBudget(64)
            await budget.acquire(30)
            waiting = asyncio.create_task(budget.acquire(50))
            await asyncio.sleep(0)
            assert [budget.try_acquire(2) for _ in range(5)] == [True] * 4 + [False]
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert budget.try_acquire(2), "with no large one waiting, all of it is theirs"

        asyncio.run(scenario())

    def test_large_ones_never_take_the_reserve(self):
        async def scenario():
            budget = MemoryBudget(64)
            assert [budget.try_acquire(size) for size in (30, 26, 3)] == [True, True, False]
            assert [budget.try_acquire(2) for _ in range(5)] == [True] * 4 + [False]

        asyncio.run(scenario())

    def test_a_large_one_is_not_starved_by_small_ones_that_keep_coming(self):
        async def scenario():
            budget, lent = MemoryBudget(64), 0
            while budget.try_acquire(2):
                lent += 1
            assert lent == 32
            large = asyncio.create_task(budget.acquire(56))
            for _ in range(32):
                await asyncio.sleep(0)
                budget.release(2)
                if large.done():
                    break
                budget.try_acquire(2)
            assert large.done()
            assert budget.used_bytes <= 64

        asyncio.run(scenario())

    def test_one_that_gives_up_lets_the_next_pass(self):
        async def scenario():
            budget = MemoryBudget(64)
            await budget.acquire(20)
            large = asyncio.create_task(budget.acquire(50))
            less = asyncio.create_task(budget.acquire(20))
            await asyncio.sleep(0)
            large.cancel()
            await less
            assert budget.used_bytes == 40

        asyncio.run(scenario())

    def test_what_was_lent_in_the_moment_of_giving_up_comes_back(self):
        async def scenario():
            budget = MemoryBudget(64)
            await budget.acquire(50)
            waiting = asyncio.create_task(budget.acquire(50))
            await asyncio.sleep(0)
            budget.release(50)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert budget.used_bytes == 0

        asyncio.run(scenario())


class TestPace:
    """How slow a peer may be."""

    @pytest.mark.parametrize(("wait_seconds", "moved_bytes", "waits"), [(3.0, 0, 4), (1.0, 1, 11), (1.0, 50, 20)])
    def test_a_credit_drains_by_waiting_and_fills_by_bytes(self, wait_seconds, moved_bytes, waits):
        """At 100 bytes a second and ten seconds of credit; the wait in which it ends counts."""
        pace, made = Pace(stall_seconds=10, bytes_per_second=100), 0
        while not pace.is_over:
            pace.note(waited_seconds=wait_seconds, moved_bytes=moved_bytes)
            made += 1
        assert made == waits

    def test_who_keeps_to_the_rate_is_waited_for_as_long_as_it_takes(self):
        pace = Pace(stall_seconds=10, bytes_per_second=100)
        for _ in range(10_000):
            pace.note(waited_seconds=5, moved_bytes=500)
        assert not pace.is_over

    def test_what_came_fast_buys_no_long_silence(self):
        pace = Pace(stall_seconds=10, bytes_per_second=100)
        pace.note(waited_seconds=0, moved_bytes=1_000_000)
        pace.note(waited_seconds=10, moved_bytes=0)
        assert pace.is_over


async def stored_of(pieces):
    """The record that a named body gives to a reader, or the error that it raises."""
    named = RecordKey("tenant", fingerprint(DOCUMENT), Kind.HISTORY, KEYS[0])
    body = NamedBody(PieceBody(in_pieces(pieces)), named, LAYOUT, 1 << 20)
    reader = RecordReader(
        body, {fingerprint(DOCUMENT): LAYOUT}.get, lambda _: None, max_record_bytes=1 << 20, max_records=10
    )
    try:
        return received(await read_all(reader)), None
    except RecordError as error:
        return [], type(error)


@given(st.lists(st.integers(min_value=0, max_value=10_000), max_size=12), st.sampled_from([b"", b"x", RECORDS[0]]))
def test_one_named_record_counts_only_where_its_body_ends_behind_it(places, tail):
    found = asyncio.run(stored_of([*cut_at(RECORDS[0], places), tail]))
    assert found == (([], TrailingBytes) if tail else ([RECORDS[0]], None))


def test_a_record_that_is_not_the_one_named_is_refused_by_its_header():
    assert asyncio.run(stored_of([RECORDS[1][:128]])) == ([], WrongKey)
    assert asyncio.run(stored_of([RECORDS[0][:100]])) == ([], TruncatedRecord)
