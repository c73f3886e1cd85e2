"""Records made on the spot, and a clock to use them by; for tests of a store."""

from collections.abc import Sequence

from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import Header, parse_header
from kvcairn_storage.puts import NewRecord
from kvcairn_storage.store import Entry, Put

LAYOUT = bytes(range(32))
SECONDS = 30


class ManualClock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def make_record(  # noqa: PLR0913 - a record has that many parts, and each has a default
    *,
    key: bytes,
    position: int = 128,
    parent: bytes = bytes(16),
    kind: Kind = Kind.HISTORY,
    tenant: str = "t",
    layout: bytes = LAYOUT,
    block_tokens: int = 128,
    payload: bytes = b"payload",
) -> NewRecord:
    """A whole, sealed record with codec raw."""
    packed = Header(
        kind=kind, position=position, raw_bytes=len(payload), stored_bytes=len(payload),
        fingerprint=layout, key=key, parent=parent,
    ).seal(payload)  # fmt: skip
    header = parse_header(packed, max_raw_bytes=len(payload))
    return NewRecord(tenant, header, block_tokens, [packed, payload])


def make_chain(keys: Sequence[bytes], *, tenant: str = "t", payload: bytes = b"payload") -> list[NewRecord]:
    """History blocks of 128 tokens that follow each other."""
    parents = [bytes(16), *(key[:16] for key in keys)]
    return [
        make_record(key=key, position=(index + 1) * 128, parent=parents[index], tenant=tenant, payload=payload)
        for index, key in enumerate(keys)
    ]


def make_state(block: NewRecord, *, kind: Kind = Kind.STATE, payload: bytes = b"state") -> NewRecord:
    """A state or window record at a block's key."""
    header = block.header
    return make_record(
        key=header.key, position=header.position, parent=header.parent, kind=kind, tenant=block.tenant, payload=payload
    )


def make_put(record: NewRecord, *, now: float = 0.0) -> Put:
    """The same record as a RecordStore takes it."""
    header = record.header
    entry = Entry(
        position=header.position, parent=header.parent, block_tokens=record.block_tokens, raw_bytes=header.raw_bytes,
        stored_bytes=header.stored_bytes, created=now, last_used=now,
    )  # fmt: skip
    return Put(record.key, entry, record.data)
