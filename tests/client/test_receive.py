"""Whatever happens to the bytes of an answer, a record that counts as loaded is the one that was asked for."""

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import client_samples as samples
from kvcairn_client.errors import BadAnswer, ClientError, ServiceUnreachable
from kvcairn_client.outgoing import bodies
from kvcairn_client.receive import Outcome, Receiver, Tally
from kvcairn_client.records import FetchResult, Ref
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import HEADER_BYTES, Header, missing_record

LAYOUT = samples.layout(row_bytes=64)
RECORDS = [*samples.prompt(LAYOUT, 3, states=[2]), samples.outgoing(LAYOUT, Kind.WINDOW, 1)]


def travelling(codec: str) -> bytes:
    """The records as a service would send them."""
    return b"".join(part for body in bodies(LAYOUT, RECORDS, codec, limit_bytes=1 << 30) for part in body.parts)  # type: ignore[arg-type]


TRAVELLING = {codec: travelling(codec) for codec in ("raw", "zstd", "shuffle-zstd")}


class Bytes:
    """A body in memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def fill(self, target: memoryview) -> int:
        piece = self.data[self.at : self.at + len(target)]
        target[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)


def receive(data: bytes) -> tuple[FetchResult, list[bytearray]]:
    """Everything as the transport does it, without a transport."""
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    source, tally = Bytes(data), Tally(LAYOUT, asked=len(wishes))
    try:
        for wish in wishes:
            tally.take(source, wish)
    except ClientError as fault:
        tally.settle()
        return tally.result(fault), buffers
    tally.settle()
    return tally.result(), buffers


def true_ones(buffers: list[bytearray]) -> list[bool]:
    return [bytes(buffer) == record.payload for buffer, record in zip(buffers, RECORDS, strict=True)]


def check(result: FetchResult, buffers: list[bytearray]) -> None:
    assert all(true for loaded, true in zip(result.loaded, true_ones(buffers), strict=True) if loaded)


codecs = st.sampled_from(sorted(TRAVELLING))
places = st.integers(0, max(map(len, TRAVELLING.values())))


@pytest.mark.parametrize("codec", TRAVELLING)
def test_an_untouched_answer_loads_everything(codec: str) -> None:
    result, buffers = receive(TRAVELLING[codec])
    assert result == FetchResult(loaded=[True] * 5, bytes_received=len(TRAVELLING[codec]))
    assert all(true_ones(buffers))


@given(codecs, places)
def test_a_cut_anywhere_loads_the_whole_records_before_it_and_no_other(codec: str, place: int) -> None:
    data = TRAVELLING[codec]
    cut_at = place % len(data)
    result, buffers = receive(data[:cut_at])
    check(result, buffers)
    assert isinstance(result.fault, ServiceUnreachable)
    assert result.bytes_received == cut_at
    assert result.loaded == sorted(result.loaded, reverse=True)


@given(codecs, places, st.integers(1, 255))
def test_a_flip_anywhere_never_loads_the_record_that_it_hit(codec: str, place: int, mask: int) -> None:
    data = bytearray(TRAVELLING[codec])
    data[place % len(data)] ^= mask
    result, buffers = receive(bytes(data))
    check(result, buffers)
    assert result.loaded.count(True) < len(RECORDS)


@given(codecs, st.lists(st.tuples(places, st.integers(0, 255)), max_size=6), st.lists(places, max_size=2))
def test_no_damage_makes_a_wrong_record_count_as_loaded(
    codec: str, changes: list[tuple[int, int]], removals: list[int]
) -> None:
    data = bytearray(TRAVELLING[codec])
    for place, value in changes:
        data[place % len(data)] = value
    for place in removals:
        del data[place % len(data) : place % len(data) + 7]
    check(*receive(bytes(data)))


@given(st.binary(max_size=2000), codecs)
def test_noise_in_front_loads_nothing_wrong(noise: bytes, codec: str) -> None:
    check(*receive(noise + TRAVELLING[codec]))


@given(st.permutations(range(5)), codecs)
def test_records_in_another_order_are_no_answer(order: list[int], codec: str) -> None:
    pieces = [travelling_one(index, codec) for index in order]
    result, buffers = receive(b"".join(pieces))
    check(result, buffers)
    assert result.loaded == [index == place for place, index in enumerate(order)] or result.fault is not None


def travelling_one(index: int, codec: str) -> bytes:
    body = next(iter(bodies(LAYOUT, [RECORDS[index]], codec, limit_bytes=1 << 30)))  # type: ignore[arg-type]
    return b"".join(body.parts)


def test_a_missing_answer_leaves_the_target_alone_and_the_rest_readable() -> None:
    first = missing_record(LAYOUT, Kind.HISTORY, key=samples.key(0))
    rest = b"".join(travelling_one(index, "raw") for index in range(1, 5))
    result, buffers = receive(first + rest)
    assert result.loaded == [False, True, True, True, True]
    assert buffers[0] == bytearray([0xA5]) * len(buffers[0])


def test_a_missing_answer_for_something_else_is_bad() -> None:
    wish = samples.wanted(LAYOUT, RECORDS)[0][0]
    other = missing_record(LAYOUT, Kind.HISTORY, key=samples.key(9))
    assert Receiver(LAYOUT).receive(Bytes(other), wish) is Outcome.BAD


def header_with(change: Callable[[bytearray], None]) -> bytes:
    head = bytearray(TRAVELLING["raw"][:HEADER_BYTES])
    change(head)
    return bytes(head)


@pytest.mark.parametrize("codec_number", [0, 1, 2])
def test_a_claimed_length_is_refused_before_anything_is_allocated(codec_number: int) -> None:
    def claim(head: bytearray) -> None:
        head[5] = codec_number
        head[16:32] = (1 << 40).to_bytes(8, "little") * 2

    wish = samples.wanted(LAYOUT, RECORDS)[0][0]
    receiver = Receiver(LAYOUT)
    tracemalloc.start()
    try:
        with pytest.raises(BadAnswer, match="has at most"):
            receiver.receive(Bytes(header_with(claim)), wish)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_compressed_records_pass_through_a_few_buffers() -> None:
    """What a fetch holds beside its targets does not grow with the number of records."""
    big = samples.layout(row_bytes=1 << 20)
    records = [samples.outgoing(big, Kind.HISTORY, index) for index in range(0, 40, 2)]
    squeezed = [record._replace(payload=record.payload[: len(record.payload) // 2] * 2) for record in records]
    data = b"".join(part for body in bodies(big, squeezed, "zstd", limit_bytes=1 << 30) for part in body.parts)
    wishes, buffers = samples.wanted(big, squeezed)
    source, tally = Bytes(data), Tally(big, asked=len(wishes))
    tracemalloc.start()
    try:
        for wish in wishes:
            tally.take(source, wish)
        tally.settle()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(tally.result().loaded)
    assert [bytes(buffer) for buffer in buffers] == [record.payload for record in squeezed]
    # A buffer of half a record each, and what decoding two of them takes.
    assert peak_bytes < 8 * len(buffers[0]) < len(data)


def test_a_bad_compressed_record_costs_itself_alone_and_is_named() -> None:
    data = bytearray(TRAVELLING["zstd"])
    data[HEADER_BYTES + len(RECORDS[0].payload) + HEADER_BYTES + 9] ^= 1
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    source, tally = Bytes(bytes(data)), Tally(LAYOUT, asked=len(wishes))
    for wish in wishes:
        tally.take(source, wish)
    tally.settle()
    assert tally.result().loaded == [True, False, True, True, True]
    assert tally.bad == [Ref(Kind.HISTORY, samples.key(1))]
    assert true_ones(buffers) == [True, False, True, True, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"raw_bytes": 64, "stored_bytes": 64},
        {"position": 9},
        {"position": 0, "parent": bytes(16)},
        {"parent": b"p" * 16},
        {"fingerprint": bytes(32)},
        {"key": bytes(32)},
        {"kind": Kind.STATE},
    ],
    ids=str,
)
def test_a_record_with_a_true_checksum_must_still_fit_the_layout(changes: dict[str, object]) -> None:
    """Position None is a reader's right: what the record claims must then be possible all the same."""
    record = RECORDS[0]
    size_bytes = len(record.payload)
    fields = {
        "kind": record.kind, "position": record.position, "raw_bytes": size_bytes, "stored_bytes": size_bytes,
        "fingerprint": LAYOUT.fingerprint, "key": record.key, "parent": record.parent, **changes,
    }  # fmt: skip
    payload = bytes(record.payload)[: int(fields["stored_bytes"])]  # type: ignore[call-overload]
    travelling = Header(**fields).seal(payload) + payload  # type: ignore[arg-type]
    wish = samples.wanted(LAYOUT, RECORDS)[0][0]._replace(position=None)
    assert Receiver(LAYOUT).receive(Bytes(travelling), wish) is Outcome.BAD
