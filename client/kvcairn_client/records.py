"""What callers hand to the client and get back: plain values, no I/O."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvcairn_client.errors import ClientError
from kvcairn_protocol.codec import Bytes, CodecName
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero


class Ref(NamedTuple):
    """One record by its name: kind and 32-byte key."""

    kind: Kind
    key: bytes


class Wanted(NamedTuple):
    """One record to fetch, and where its decoded payload goes.

    position: tokens processed at the record's end, None where the caller does not know it.
    target: writable, contiguous, exactly `layout.payload_bytes(kind)` bytes; its content is undefined unless the
    record was loaded.
    """

    kind: Kind
    key: bytes
    position: int | None
    target: memoryview


class Outgoing(NamedTuple):
    """One record to store.

    position: tokens processed at its end. parent: the first 16 bytes of the previous block's key, zeros for the first
    block. payload: the decoded payload, `layout.payload_bytes(kind)` bytes, not to be changed until it is stored.
    """

    kind: Kind
    key: bytes
    position: int
    parent: bytes
    payload: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What is stored of a prompt. state_tokens: positions of stored states inside the run, deepest first.

    answered: False for a fail-open answer: nothing is known then, which is not the same as nothing is stored.
    """

    history_blocks: int = 0
    hit_tokens: int = 0
    state_tokens: tuple[int, ...] = ()
    strategy: Full | Periodic | Zero | Anchored = field(default_factory=Anchored)
    codec: CodecName = "auto"
    answered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """What a fetch brought, record by record, in the order asked.

    loaded: whether `wanted[i].target` holds verified bytes; False is a miss, or a record that was found bad.
    bytes_received: headers and payloads as they travelled; bytes_mapped: those that were copied from an attached data
    directory instead. forged_records: misses because of a wrong MAC, where a key says what is right. fault: what ended
    the transfer early; None if nothing did.
    """

    loaded: list[bool]
    bytes_received: int = 0
    bytes_mapped: int = 0
    forged_records: int = 0
    fault: ClientError | None = None
