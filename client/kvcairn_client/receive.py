"""Reading the records of one answer, each into its target, verified as soon as it is there."""

from enum import Enum
from typing import Protocol

from kvcairn_client.errors import BadAnswer, ClientError, ServiceUnreachable
from kvcairn_client.records import FetchResult, Ref, Wanted
from kvcairn_protocol.codec import RAW, decode_into
from kvcairn_protocol.errors import CodecError, RecordError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.record import HEADER_BYTES, Header, check_asked, check_header, check_payload, parse_header


class Source(Protocol):
    """A body that fills a buffer: fewer bytes than the buffer holds only at its end."""

    def fill(self, target: memoryview) -> int: ...


class Outcome(Enum):
    """What became of one wanted record."""

    LOADED = "verified, in its target"
    MISSING = "the service does not have it"
    BAD = "not what was asked for, or damaged"


class Receiver:
    """Reads records of one layout; compressed payloads pass through one scratch buffer. Not thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._head = bytearray(HEADER_BYTES)
        self._scratch = bytearray()
        self.bytes_received = 0

    def receive(self, source: Source, wanted: Wanted) -> Outcome:
        """Read the next record. Leaves the source at the record's end whenever it returns.

        Raises BadAnswer where no record can be made out, ServiceUnreachable where the body ends: nothing that
        follows can be read then. The payload is never longer than the target, whatever its header claims.
        """
        header = self._read_header(source, max_raw_bytes=len(wanted.target))
        payload = self._payload_buffer(header, wanted)
        self._fill(source, payload)
        try:
            return self._verify(header, payload, wanted)
        except (RecordError, CodecError):
            return Outcome.BAD

    def _read_header(self, source: Source, *, max_raw_bytes: int) -> Header:
        self._fill(source, memoryview(self._head))
        try:
            return parse_header(self._head, max_raw_bytes=max_raw_bytes)
        except RecordError as error:
            raise BadAnswer(f"no record where one should start: {error}") from error

    def _payload_buffer(self, header: Header, wanted: Wanted) -> memoryview:
        if header.codec == RAW:
            return wanted.target[: header.stored_bytes]
        if len(self._scratch) < header.stored_bytes:
            self._scratch = bytearray(header.stored_bytes)
        return memoryview(self._scratch)[: header.stored_bytes]

    def _verify(self, header: Header, payload: memoryview, wanted: Wanted) -> Outcome:
        fingerprint = self._layout.fingerprint
        check_asked(header, kind=wanted.kind, key=wanted.key, fingerprint=fingerprint, position=wanted.position)
        if not header.missing:
            check_header(header, self._layout)
        check_payload(header, self._head, payload)
        if header.missing:
            return Outcome.MISSING
        if header.codec != RAW:
            decode_into(wanted.target, header.codec, payload, self._layout.segments(wanted.kind))
        return Outcome.LOADED

    def _fill(self, source: Source, target: memoryview) -> None:
        filled = source.fill(target)
        self.bytes_received += filled
        if filled < len(target):
            raise ServiceUnreachable("the service ended its answer early")


class Tally:
    """What a fetch has brought so far, over one or more requests."""

    def __init__(self, layout: Layout, asked: int) -> None:
        self.receiver = Receiver(layout)
        self.bad: list[Ref] = []
        self._asked = asked
        self._loaded: list[bool] = []

    @property
    def has_begun(self) -> bool:
        """Whether any byte of a record arrived."""
        return self.receiver.bytes_received > 0

    def take(self, source: Source, wanted: Wanted) -> None:
        """Receive one record and note what became of it; raises as `Receiver.receive` does."""
        try:
            outcome = self.receiver.receive(source, wanted)
        except BadAnswer:
            self._note_bad(wanted)
            raise
        if outcome is Outcome.BAD:
            self._note_bad(wanted)
        self._loaded.append(outcome is Outcome.LOADED)

    def result(self, fault: ClientError | None = None) -> FetchResult:
        """The answer for the caller; what was not reached is a miss."""
        rest = [False] * (self._asked - len(self._loaded))
        return FetchResult(loaded=self._loaded + rest, bytes_received=self.receiver.bytes_received, fault=fault)

    def _note_bad(self, wanted: Wanted) -> None:
        self.bad.append(Ref(wanted.kind, wanted.key))
