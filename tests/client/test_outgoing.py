"""Bodies to store: split at a limit, encoded when their turn comes, never copied where raw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import client_samples as samples
from kvcairn_client.outgoing import BODY_BYTES, added, bodies, encoded
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.errors import BadSize
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import Rejected, StoreAnswer
from kvcairn_protocol.record import HEADER_BYTES

LAYOUT = samples.layout()
RECORD_BYTES = HEADER_BYTES + LAYOUT.payload_bytes(Kind.HISTORY)


@given(st.integers(0, 12), st.integers(1, 5 * RECORD_BYTES), st.integers(1, 13))
def test_every_record_goes_once_in_order_within_the_limits(count: int, limit_bytes: int, limit_records: int) -> None:
    records = samples.prompt(LAYOUT, count)
    found = list(bodies(LAYOUT, records, "raw", limit_bytes=limit_bytes, limit_records=limit_records))
    assert all(body.records <= limit_records for body in found)
    assert [body.first for body in found] == [sum(b.records for b in found[:i]) for i in range(len(found))]
    assert sum(body.records for body in found) == count
    for body in found:
        assert body.size_bytes == sum(map(len, body.parts)) == body.records * RECORD_BYTES
        assert body.size_bytes <= limit_bytes or body.records == 1
    sent = [bytes(part) for body in found for part in list(body.parts)[1::2]]
    assert sent == [record.payload for record in records]
    assert all(b"".join(body.parts) == b"".join(body.parts) for body in found)  # a body may have to be sent again


def test_a_raw_payload_is_sent_from_where_it_lies() -> None:
    record = samples.outgoing(LAYOUT, Kind.HISTORY, 0)
    payload = bytearray(record.payload)
    (body,) = bodies(LAYOUT, [record._replace(payload=payload)], "raw", limit_bytes=BODY_BYTES)
    payload[0] ^= 1
    assert bytes(list(body.parts)[1])[0] == payload[0]


@pytest.mark.parametrize(("codec", "bodies_sent"), [("raw", 1), ("zstd", 3)])
def test_encoded_copies_are_bounded_and_raw_records_are_not(
    codec: CodecName, bodies_sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = samples.prompt(LAYOUT, 12)[1::2]  # those that compress
    copy_bytes = encoded(LAYOUT, records[0], "zstd")[1]
    monkeypatch.setattr("kvcairn_client.outgoing.COPIED_BYTES", len(copy_bytes) * 3 // 2)
    found = list(bodies(LAYOUT, records, codec, limit_bytes=BODY_BYTES))
    assert [body.records for body in found] == [len(records) // bodies_sent] * bodies_sent
    assert all(body.copied_bytes <= 3 * len(copy_bytes) for body in found)


def test_bodies_before_a_bad_record_are_yielded_before_it_is_looked_at() -> None:
    records = samples.prompt(LAYOUT, 3)
    records[2] = records[2]._replace(payload=b"short")
    stream = bodies(LAYOUT, records, "raw", limit_bytes=RECORD_BYTES)
    assert next(stream).first == 0
    with pytest.raises(BadSize):
        list(stream)


def test_indices_of_later_bodies_count_from_the_first_record() -> None:
    first = StoreAnswer(stored=2, present=1, rejected=[Rejected(index=0, key=None, reason="framing")])
    second = StoreAnswer(stored=1, present=2, rejected=[Rejected(index=1, key="ab", reason="quota")])
    total = added(first, second, first=4)
    assert (total.stored, total.present) == (3, 3)
    assert [(each.index, each.reason) for each in total.rejected] == [(0, "framing"), (5, "quota")]
