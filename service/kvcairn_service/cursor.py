"""How far a response's records have been sent. A record may leave in parts, each looked up anew: they must be of one.

Between two parts no read transaction is open, so that a record may be deleted meanwhile, and stored again with other
bytes. Its header holds the checksum of all it has; so a record whose header is what it was has the bytes that it had.
Pure.
"""

from collections.abc import Iterator, Sequence

from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.record import HEADER_BYTES


class Replaced(ConnectionError):
    """A record is another one than when its first part was sent; the response is cut."""


class Cursor:
    """A place in a run of records. sizes: of all of them, in bytes. records: how many are sent whole."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.records = 0
        self._offset_bytes = 0
        self._header = b""

    @property
    def is_at_end(self) -> bool:
        return self.records == len(self._sizes)

    def stop(self, *, read_bytes: int) -> int:
        """Where a read from here ends: at least one record, and as many as fit."""
        stop, size_bytes = self.records, 0
        while stop < len(self._sizes) and (stop == self.records or size_bytes + self._sizes[stop] <= read_bytes):
            size_bytes += self._sizes[stop]
            stop += 1
        return stop

    def unsent(self, pieces: Sequence[Bytes]) -> Iterator[Bytes]:
        """What is left of the records from here on. Replaced: the first is not the one whose first part was sent."""
        first, *others = pieces
        if self._offset_bytes:
            if bytes(first[:HEADER_BYTES]) != self._header:
                raise Replaced("a record was stored anew, with other bytes, while it was being sent")
            first = memoryview(first)[self._offset_bytes :]
        yield first
        yield from others

    def advance(self, pieces: Sequence[Bytes], *, sent_bytes: int) -> None:
        """Go on by so many bytes of what `unsent` gave for the same pieces."""
        for piece in pieces:
            left_bytes = len(piece) - self._offset_bytes
            if sent_bytes < left_bytes:
                if sent_bytes:
                    self._offset_bytes += sent_bytes
                    self._header = bytes(piece[:HEADER_BYTES])
                return
            sent_bytes -= left_bytes
            self.records += 1
            self._offset_bytes = 0
