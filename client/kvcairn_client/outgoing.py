"""Records to store as request bodies: encoded one body at a time, split at a limit. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvcairn_client.records import Outgoing
from kvcairn_protocol.codec import RAW, Bytes, CodecName, Encoded, encode
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.mac import MAC_BYTES, mac_of
from kvcairn_protocol.messages import StoreAnswer
from kvcairn_protocol.record import Header, header_of

BODY_BYTES = 256 << 20
"""The most that one body has, whatever the service allows: between two of them nothing moves while the last records of
the first are committed, so that few large ones are faster."""

COPIED_BYTES = 64 << 20
"""The most that one body holds of encoded payloads, which are copies; raw ones are sent from where they lie."""

BODY_RECORDS = 4096
"""Small records take the service's time by their number, not by their bytes."""


@dataclass(slots=True)
class StoreBody:
    """One body. first: the index of its first record among all.

    copied_bytes: of encoded payloads, which take memory of their own.
    """

    first: int
    records: int = 0
    size_bytes: int = 0
    copied_bytes: int = 0
    _content: list[tuple[Header, Bytes]] = field(default_factory=list)

    @property
    def parts(self) -> Iterator[Bytes]:
        """Headers and payloads in turn, not joined. A payload is hashed when its turn comes, while others are sent."""
        for header, payload in self._content:
            yield header.seal(payload)
            yield payload

    def add(self, header: Header, payload: Bytes, *, is_copy: bool) -> None:
        self._content.append((header, payload))
        self.records += 1
        self.size_bytes += header.record_bytes
        self.copied_bytes += len(payload) * is_copy

    def takes(self, size_bytes: int, *, limit_bytes: int, limit_records: int) -> bool:
        """Whether another record of so many bytes belongs in this body; the first one always does."""
        is_below = self.size_bytes + size_bytes <= limit_bytes and self.records < limit_records
        return not self.records or (is_below and self.copied_bytes < COPIED_BYTES)


def bodies(
    layout: Layout,
    records: Sequence[Outgoing],
    codec: CodecName,
    *,
    limit_bytes: int,
    limit_records: int = BODY_RECORDS,
    mac_key: bytes | None = None,
) -> Iterator[StoreBody]:
    """Split records into bodies of at most so many bytes and records; a record that alone is larger gets its own.

    Raises a RecordError for a record that no reader would accept, before the body that it belongs to is yielded.
    """
    limit_bytes, limit_records = min(limit_bytes, BODY_BYTES), min(limit_records, BODY_RECORDS)
    body = StoreBody(first=0)
    for index, record in enumerate(records):
        signed = record if mac_key is None else with_mac(layout, record, mac_key)
        header, payload = encoded(layout, signed, codec)
        if not body.takes(header.record_bytes, limit_bytes=limit_bytes, limit_records=limit_records):
            yield body
            body = StoreBody(first=index)
        is_copy = mac_key is not None or len(payload) < memoryview(record.payload).nbytes
        body.add(header, payload, is_copy=is_copy)
    if body.records:
        yield body


def with_mac(layout: Layout, record: Outgoing, mac_key: bytes) -> Outgoing:
    """The record with its MAC in the payload's last bytes; a copy, since what is given belongs to the caller."""
    size_bytes = memoryview(record.payload).nbytes
    header = header_of(
        layout, record.kind, key=record.key, position=record.position, parent=record.parent,
        payload=Encoded(RAW, record.payload, size_bytes),
    )  # fmt: skip
    payload = bytearray(record.payload)
    payload[-MAC_BYTES:] = mac_of(mac_key, header, record.payload)
    return record._replace(payload=payload)


def encoded(layout: Layout, record: Outgoing, codec: CodecName) -> tuple[Header, Bytes]:
    """Header, not sealed yet, and payload as it travels. A raw payload is not copied."""
    payload = encode(record.payload, codec, layout.segments(record.kind))
    header = header_of(
        layout, record.kind, key=record.key, position=record.position, parent=record.parent, payload=payload
    )
    return header, payload.data


def added(total: StoreAnswer, answer: StoreAnswer, *, first: int) -> StoreAnswer:
    """Two answers as one; first: the index, among all records, that the second one counts from."""
    moved = [rejected.model_copy(update={"index": rejected.index + first}) for rejected in answer.rejected]
    return StoreAnswer(
        stored=total.stored + answer.stored,
        present=total.present + answer.present,
        rejected=[*total.rejected, *moved],
    )
