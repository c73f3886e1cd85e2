"""Body to records: an incremental parser of the record stream. Pure; no socket, no store.

Format: docs/wire.md ("Record"). Everything that a header can tell is checked before a byte is allocated for its
payload. A bad record is skipped by its length; where the framing itself is lost, nothing after it can be trusted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcairn_protocol.codec import RAW
from kvcairn_protocol.errors import BadMagic, Reason, RecordError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.record import HEADER_BYTES, Header, check_decodes, check_header, check_payload, parse_header

_STORED_BYTES = slice(24, 32)
_KEY = slice(64, 96)


class Announced(NamedTuple):
    """A good header has come. Nothing is allocated for the record until the parser is resumed."""

    record_bytes: int


@dataclass(frozen=True, slots=True)
class Received:
    """One whole record, header and payload in `data`; `verify` is still to be called."""

    index: int
    header: Header
    layout: Layout
    data: bytearray

    @property
    def is_raw(self) -> bool:
        """Whether verifying takes no more than hashing."""
        return self.header.codec == RAW

    def verify(self) -> None:
        """Check length, checksum, and that the payload decodes; RecordError if not. Any thread.

        A record that nobody can decode would keep the good one of its key out: the first writer wins.
        """
        view = memoryview(self.data)
        check_payload(self.header, view[:HEADER_BYTES], view[HEADER_BYTES:])
        check_decodes(self.header, self.layout, view[HEADER_BYTES:])


@dataclass(frozen=True, slots=True)
class Refused:
    """One record that cannot be stored. key: hex; None where the framing is lost."""

    index: int
    key: str | None
    reason: Reason


Event = Announced | Received | Refused


@dataclass(slots=True)
class _Pending:
    """The record whose payload is arriving: filled[:at] of `data` is there."""

    header: Header
    layout: Layout
    data: bytearray
    at: int


@dataclass(slots=True)
class RecordParser:
    """Feed it a body piece by piece. find_layout: the registered layout of a fingerprint, or None.

    A body of more than `max_records` records counts as lost from there on: small ones cost time and memory by number.
    """

    find_layout: Callable[[bytes], Layout | None]
    max_record_bytes: int
    max_records: int
    index: int = 0
    lost: bool = False
    _head: bytearray = field(default_factory=bytearray)
    _pending: _Pending | None = None
    _skip_bytes: int = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Take in the next piece; yields what it completes. Run the iterator to its end before the next piece."""
        view = memoryview(piece)
        while view and not self.lost:
            if self._skip_bytes:
                view = self._skip(view)
            elif self._pending is not None:
                view = self._fill(self._pending, view)
                yield from self._take_filled(self._pending)
            else:
                view = self._collect_head(view)
                if self.index >= self.max_records:
                    yield self._lose()
                elif len(self._head) == HEADER_BYTES:
                    yield from self._begin(bytes(self._head))

    def finish(self) -> Refused | None:
        """The body has ended: what it cut off, if anything."""
        if self.lost or not (self._head or self._pending):
            return None
        return self._lose()

    def _skip(self, view: memoryview) -> memoryview:
        taken = min(self._skip_bytes, len(view))
        self._skip_bytes -= taken
        return view[taken:]

    def _collect_head(self, view: memoryview) -> memoryview:
        taken = min(HEADER_BYTES - len(self._head), len(view))
        self._head += view[:taken]
        return view[taken:]

    def _begin(self, packed: bytes) -> Iterator[Event]:
        stored_bytes = int.from_bytes(packed[_STORED_BYTES], "little")
        try:
            header, layout = self._accept(packed)
        except RecordError as error:
            if isinstance(error, BadMagic) or stored_bytes > self.max_record_bytes:
                yield self._lose()
            else:
                yield self._refuse(packed, error, stored_bytes)
            return
        yield Announced(header.record_bytes)
        data = bytearray(header.record_bytes)
        data[:HEADER_BYTES] = packed
        self._head.clear()
        self._pending = _Pending(header, layout, data, HEADER_BYTES)
        yield from self._take_filled(self._pending)

    def _accept(self, packed: bytes) -> tuple[Header, Layout]:
        header = parse_header(packed, max_raw_bytes=self.max_record_bytes)
        layout = self.find_layout(header.fingerprint)
        if layout is None:
            raise UnknownLayout(f"layout {header.fingerprint.hex()} is not registered")
        check_header(header, layout)
        return header, layout

    def _refuse(self, packed: bytes, error: RecordError, stored_bytes: int) -> Refused:
        refused = Refused(self.index, packed[_KEY].hex(), error.reason)
        self._skip_bytes = stored_bytes
        self._head.clear()
        self.index += 1
        return refused

    def _fill(self, pending: _Pending, view: memoryview) -> memoryview:
        taken = min(len(pending.data) - pending.at, len(view))
        pending.data[pending.at : pending.at + taken] = view[:taken]
        pending.at += taken
        return view[taken:]

    def _take_filled(self, pending: _Pending) -> Iterator[Received]:
        if pending.at == len(pending.data):
            self._pending = None
            received = Received(self.index, pending.header, pending.layout, pending.data)
            self.index += 1
            yield received

    def _lose(self) -> Refused:
        self.lost = True
        self._pending = None
        self._head.clear()
        return Refused(self.index, None, "framing")


class UnknownLayout(RecordError):
    """The record's layout is not registered for this tenant."""

    reason = "layout"
