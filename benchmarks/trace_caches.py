"""Where a trace is replayed into: a PrefixStore in this process, or a service in another one."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.trace_entries import EntryStore
from benchmarks.trace_replay import Found, Piece
from kvcairn_client.client import Client
from kvcairn_client.records import Outgoing, Wanted
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.prefix import parent_of
from kvcairn_protocol.record import Header
from kvcairn_storage.prefixes import NewRecord, Outcome, PrefixStore
from kvcairn_storage.store import RecordKey

TENANT = "trace"


class StoreCache:
    """A PrefixStore on entries without payloads; `seconds` is what its clock says."""

    def __init__(self, layout: Layout, *, capacity_bytes: int) -> None:
        self.seconds = 0.0
        self._layout = layout
        self._sizes = {kind: layout.payload_bytes(kind) for kind in Kind}
        self.entries = EntryStore(capacity_bytes=capacity_bytes)
        self.prefixes = PrefixStore(self.entries, capacity_bytes=capacity_bytes, clock=lambda: self.seconds)

    def set_clock(self, seconds: float) -> None:
        self.seconds = seconds

    def look_up(self, keys: Sequence[bytes]) -> Found:
        block_tokens = self._layout.block_tokens
        return self.prefixes.longest_run(
            tenant=TENANT, layout=self._layout.fingerprint, keys=keys, block_tokens=block_tokens
        )

    def fetch(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> None:
        wanted = [RecordKey(TENANT, self._layout.fingerprint, piece.kind, keys[piece.block]) for piece in pieces]
        assert self.prefixes.touch(wanted) == len(wanted), "a record that was found a moment ago is gone"

    def store(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> None:
        results = self.prefixes.put([self._record(keys, piece) for piece in pieces]).result()
        outcomes = Counter(result.outcome for result in results)
        assert outcomes == {Outcome.STORED: len(pieces)}, outcomes
        self.entries.settle()
        assert not self.entries.faults, self.entries.faults

    def _record(self, keys: Sequence[bytes], piece: Piece) -> NewRecord:
        size_bytes = self._sizes[piece.kind]
        header = Header(
            kind=piece.kind, position=(piece.block + 1) * self._layout.block_tokens, raw_bytes=size_bytes,
            stored_bytes=size_bytes, fingerprint=self._layout.fingerprint, key=keys[piece.block],
            parent=parent_of(keys, piece.block),
        )  # fmt: skip
        return NewRecord(TENANT, header, self._layout.block_tokens, [])


class ServiceCache:
    """A service process, asked over HTTP by a client. A payload is made of its record's key, and compared."""

    def __init__(self, layout: Layout, client: Client) -> None:
        self._layout, self._client = layout, client
        self._sizes = {kind: layout.payload_bytes(kind) for kind in Kind}

    def look_up(self, keys: Sequence[bytes]) -> Found:
        return self._client.lookup(self._layout, keys)

    def fetch(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> None:
        buffers = [bytearray(self._sizes[piece.kind]) for piece in pieces]
        wanted = [
            Wanted(piece.kind, keys[piece.block], self._position(piece), memoryview(buffer))
            for piece, buffer in zip(pieces, buffers, strict=True)
        ]
        result = self._client.fetch(self._layout, wanted)
        assert all(result.loaded), f"a record that was found a moment ago did not come: {result.fault}"
        for piece, buffer in zip(pieces, buffers, strict=True):
            assert bytes(buffer) == self._payload(keys, piece), f"another record's bytes came for {piece}"

    def store(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> None:
        records = [
            Outgoing(piece.kind, keys[piece.block], self._position(piece), parent_of(keys, piece.block),
                     self._payload(keys, piece))
            for piece in pieces
        ]  # fmt: skip
        answer = self._client.store(self._layout, records, codec="raw")
        assert (answer.stored, answer.rejected) == (len(records), []), answer

    def _position(self, piece: Piece) -> int:
        return (piece.block + 1) * self._layout.block_tokens

    def _payload(self, keys: Sequence[bytes], piece: Piece) -> bytes:
        """Bytes that no other record has: the key and the kind, over and over."""
        pattern = keys[piece.block] + bytes([piece.kind])
        size_bytes = self._sizes[piece.kind]
        return (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]
