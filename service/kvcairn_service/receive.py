"""Body to records: reads one record after the other from a body into buffers of the caller's. No socket, no store.

Format: docs/wire.md ("Record"). Everything that a header can tell is checked before a byte is allocated for its
payload. A bad record is skipped by its length; where the framing itself is lost, nothing after it can be trusted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvcairn_protocol.codec import RAW
from kvcairn_protocol.errors import BadMagic, Reason, RecordError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.record import HEADER_BYTES, Header, check_decodes, check_header, check_payload, parse_header

SKIP_BYTES = 64 << 10
_STORED_BYTES = slice(24, 32)
_KEY = slice(64, 96)


class Body(Protocol):
    """A request's body, read once from its start."""

    async def fill(self, target: memoryview) -> int:
        """Fill `target` with what comes next; returns the bytes filled, fewer only where the body ends.

        Raises whatever ended the body early. `target` may then hold some of it, and is written to no more.
        """
        ...


@dataclass(frozen=True, slots=True)
class Announced:
    """A good header has come. Nothing is allocated for the record yet."""

    index: int
    header: Header
    layout: Layout
    packed: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """One whole record, header and payload in `data`; `verify` is still to be called."""

    index: int
    header: Header
    layout: Layout
    data: memoryview

    @property
    def is_raw(self) -> bool:
        """Whether verifying takes no more than hashing."""
        return self.header.codec == RAW

    def verify(self) -> None:
        """Check length, checksum, and that the payload decodes; RecordError if not. Any thread.

        A record that nobody can decode would keep the good one of its key out: the first writer wins.
        """
        check_payload(self.header, self.data[:HEADER_BYTES], self.data[HEADER_BYTES:])
        check_decodes(self.header, self.layout, self.data[HEADER_BYTES:])


@dataclass(frozen=True, slots=True)
class Refused:
    """One record that cannot be stored. key: hex; None where the framing is lost."""

    index: int
    key: str | None
    reason: Reason


@dataclass(slots=True)
class RecordReader:
    """Takes a body apart: `next`, then `fill` for each record announced. To be used by one task.

    find_layout: the registered layout of a fingerprint, or None. note_bytes: told of all that is taken from the body.
    A body of more than `max_records` records counts as lost from there on: small ones cost time and memory by number.
    """

    body: Body
    find_layout: Callable[[bytes], Layout | None]
    note_bytes: Callable[[int], None]
    max_record_bytes: int
    max_records: int
    index: int = 0
    has_begun: bool = False
    lost: bool = False
    _head: bytearray = field(default_factory=lambda: bytearray(HEADER_BYTES))

    async def next(self) -> Announced | Refused | None:
        """What the next header says; None at the end of the body, or where its framing is lost."""
        if self.lost:
            return None
        got_bytes = await self._take(memoryview(self._head))
        if not got_bytes:
            return None
        self.has_begun = True
        if got_bytes < HEADER_BYTES or self.index >= self.max_records:
            return self._lose()
        packed = bytes(self._head)
        try:
            header, layout = self._accept(packed)
        except RecordError as error:
            return await self._refuse(packed, error)
        return Announced(self.index, header, layout, packed)

    async def fill(self, announced: Announced, data: memoryview) -> Received | Refused:
        """Read the record that `next` announced last into `data`, header first; `data` is as long as the record."""
        data[:HEADER_BYTES] = announced.packed
        payload = data[HEADER_BYTES:]
        if await self._take(payload) < len(payload):
            return self._lose()
        self.index += 1
        return Received(announced.index, announced.header, announced.layout, data)

    async def _take(self, target: memoryview) -> int:
        got_bytes = await self.body.fill(target)
        self.note_bytes(got_bytes)
        return got_bytes

    def _accept(self, packed: bytes) -> tuple[Header, Layout]:
        header = parse_header(packed, max_raw_bytes=self.max_record_bytes)
        layout = self.find_layout(header.fingerprint)
        if layout is None:
            raise UnknownLayout(f"layout {header.fingerprint.hex()} is not registered")
        check_header(header, layout)
        return header, layout

    async def _refuse(self, packed: bytes, error: RecordError) -> Refused:
        stored_bytes = int.from_bytes(packed[_STORED_BYTES], "little")
        if isinstance(error, BadMagic) or stored_bytes > self.max_record_bytes:
            return self._lose()
        refused = Refused(self.index, packed[_KEY].hex(), error.reason)
        self.index += 1
        await self._skip(stored_bytes)
        return refused

    async def _skip(self, left_bytes: int) -> None:
        nowhere = memoryview(bytearray(min(left_bytes, SKIP_BYTES)))
        while left_bytes:
            wanted = nowhere[:left_bytes]
            if await self._take(wanted) < len(wanted):
                return
            left_bytes -= len(wanted)

    def _lose(self) -> Refused:
        self.lost = True
        return Refused(self.index, None, "framing")


class UnknownLayout(RecordError):
    """The record's layout is not registered for this tenant."""

    reason = "layout"
