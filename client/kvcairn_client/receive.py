"""Reading the records of one answer, each into its target, verified as soon as it is there.

A raw payload is hashed by the reading thread, while it is still in the processor's cache: handing it on is slower. A
compressed one is handed to threads that decode (decoding.py) while the next one arrives, and so is one with a MAC: that
takes as long as receiving.
"""

from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Protocol

from kvcairn_client.decoding import Decoder
from kvcairn_client.errors import BadAnswer, ClientError, ServiceUnreachable
from kvcairn_client.records import FetchResult, Ref, Wanted
from kvcairn_client.verify import check_wanted, load
from kvcairn_protocol.codec import RAW, Bytes
from kvcairn_protocol.errors import BadMac, CodecError, RecordError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.record import HEADER_BYTES, Header, check_asked, check_payload, parse_header


class Source(Protocol):
    """A body that fills a buffer: fewer bytes than the buffer holds only at its end."""

    def fill(self, target: memoryview) -> int: ...


class Outcome(Enum):
    """What became of one wanted record."""

    LOADED = "verified, in its target"
    MISSING = "the service does not have it"
    BAD = "not what was asked for, or damaged"
    FORGED = "whole, but its MAC is not one that the key makes"


class Receiver:
    """Reads records of one layout. Not thread-safe."""

    def __init__(self, layout: Layout, *, mac_key: bytes | None = None) -> None:
        self._layout, self._mac_key = layout, mac_key
        self._head = bytearray(HEADER_BYTES)
        self._decoder = Decoder()
        self.bytes_received = 0

    def receive(self, source: Source, wanted: Wanted) -> "Outcome | Future[Outcome]":
        """Read the next record; a compressed one is verified and decoded later, at the latest by `finish`.

        Leaves the source at the record's end whenever it returns. Raises BadAnswer where no record can be made out,
        ServiceUnreachable where the body ends: nothing that follows can be read then. The payload is never longer than
        the target, whatever its header claims.
        """
        header = self._read_header(source, max_raw_bytes=len(wanted.target))
        if header.codec == RAW:
            payload = wanted.target[: header.stored_bytes]
            self._fill(source, payload)
            if self._mac_key is None or header.missing:
                return self._verified(header, self._head, payload, wanted)
            return self._decoder.run(partial(self._verified, header, bytes(self._head), payload, wanted))
        payload = self._decoder.borrow(header.stored_bytes)
        self._fill(source, payload)
        return self._decoder.start(partial(self._verified, header, bytes(self._head), payload, wanted), payload)

    def finish(self) -> None:
        """Wait until every record that was received is verified: no target changes afterwards."""
        self._decoder.finish()

    def _read_header(self, source: Source, *, max_raw_bytes: int) -> Header:
        self._fill(source, memoryview(self._head))
        try:
            return parse_header(self._head, max_raw_bytes=max_raw_bytes)
        except RecordError as error:
            raise BadAnswer(f"no record where one should start: {error}") from error

    def _verified(self, header: Header, head: Bytes, payload: memoryview, wanted: Wanted) -> Outcome:
        try:
            return self._verify(header, head, payload, wanted)
        except (RecordError, CodecError):
            return Outcome.BAD
        except BadMac:
            return Outcome.FORGED

    def _verify(self, header: Header, head: Bytes, payload: memoryview, wanted: Wanted) -> Outcome:
        if header.missing:
            check_asked(header, kind=wanted.kind, key=wanted.key, fingerprint=self._layout.fingerprint)
            check_payload(header, head, payload)
            return Outcome.MISSING
        check_wanted(header, self._layout, wanted)
        load(header, head, payload, self._layout, wanted, mac_key=self._mac_key)
        return Outcome.LOADED

    def _fill(self, source: Source, target: memoryview) -> None:
        filled = source.fill(target)
        self.bytes_received += filled
        if filled < len(target):
            raise ServiceUnreachable("the service ended its answer early")


class Tally:
    """What a fetch has brought so far, over one or more requests."""

    def __init__(self, layout: Layout, asked: int, *, mac_key: bytes | None = None) -> None:
        self.receiver = Receiver(layout, mac_key=mac_key)
        self.bad: list[Ref] = []
        self.forged: list[Ref] = []
        self._asked = asked
        self._loaded: list[bool] = []
        self._decoding: list[tuple[int, Wanted, Future[Outcome]]] = []

    @property
    def has_begun(self) -> bool:
        """Whether any byte of a record arrived."""
        return self.receiver.bytes_received > 0

    def take(self, source: Source, wanted: Wanted) -> None:
        """Receive one record and note what became of it, now or in `settle`; raises as `Receiver.receive` does."""
        try:
            outcome = self.receiver.receive(source, wanted)
        except BadAnswer:
            self.bad.append(Ref(wanted.kind, wanted.key))
            raise
        index = len(self._loaded)
        self._loaded.append(False)
        if isinstance(outcome, Outcome):
            self._note(index, wanted, outcome)
        else:
            self._decoding.append((index, wanted, outcome))

    def settle(self) -> None:
        """Wait for what is still being decoded. Before it, targets may change and `result` must not be asked for."""
        self.receiver.finish()
        decoded, self._decoding = self._decoding, []
        for index, wanted, outcome in decoded:
            self._note(index, wanted, outcome.result())

    def result(self, fault: ClientError | None = None) -> FetchResult:
        """The answer for the caller; what was not reached is a miss."""
        rest = [False] * (self._asked - len(self._loaded))
        return FetchResult(
            loaded=self._loaded + rest,
            bytes_received=self.receiver.bytes_received,
            forged_records=len(self.forged),
            fault=fault,
        )

    def _note(self, index: int, wanted: Wanted, outcome: Outcome) -> None:
        self._loaded[index] = outcome is Outcome.LOADED
        if outcome is Outcome.BAD:
            self.bad.append(Ref(wanted.kind, wanted.key))
        elif outcome is Outcome.FORGED:
            self.forged.append(Ref(wanted.kind, wanted.key))
