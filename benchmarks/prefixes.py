"""Made-up prefixes of a given layout: random payloads, real keys; and the store and fetch of a whole one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvcairn_client.client import Client
from kvcairn_client.records import FetchResult, Outgoing, Wanted
from kvcairn_protocol.codec import Bytes
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.prefix import block_keys, parent_of

GROUP_RECORDS = 64


@dataclass
class Prefix:
    """A stored prefix of `blocks` blocks and one state at its end, with the buffer that a restore reads into."""

    layout: Layout
    blocks: int
    seed: int = 0
    keys: list[bytes] = field(init=False)
    buffer: memoryview = field(init=False)

    def __post_init__(self) -> None:
        tokens = np.random.default_rng(self.seed).integers(0, 100_000, self.blocks * self.layout.block_tokens)
        self.keys = block_keys(self.layout, tokens)
        self.buffer = np.zeros(self.payload_bytes, np.uint8).data

    @property
    def payload_bytes(self) -> int:
        return sum(self._size_bytes(index) for index in range(self.blocks + 1))

    def payload(self, index: int) -> bytes:
        """What record `index` of this prefix holds, the state last: random bytes of this seed."""
        return np.random.default_rng((self.seed, index)).bytes(self._size_bytes(index))

    def records(self, start: int, stop: int) -> list[Outgoing]:
        """The records [start, stop) of this prefix, the state last, each with its payload."""
        return [self._outgoing(index, self.payload(index)) for index in range(start, min(stop, self.blocks + 1))]

    def records_of(self, payloads: Sequence[Bytes]) -> list[Outgoing]:
        """All records of this prefix with payloads of another one: new names for bytes that are there already."""
        return [self._outgoing(index, payload) for index, payload in enumerate(payloads)]

    def store(self, client: Client) -> None:
        """Persist the whole prefix, a bounded number of records at a time; returns once all is committed."""
        for start in range(0, self.blocks + 1, GROUP_RECORDS):
            answer = client.store(self.layout, self.records(start, start + GROUP_RECORDS), codec="raw")
            assert not answer.rejected, answer.rejected

    def fetch(self, client: Client) -> None:
        """Look the prefix up and restore all of it, verified, into this prefix's buffer."""
        found = client.lookup(self.layout, self.keys)
        assert found.history_blocks == self.blocks, found
        self.read(client)

    def read(self, client: Client) -> FetchResult:
        """The fetch alone: all records, verified, into this prefix's buffer."""
        result = client.fetch(self.layout, self.wanted())
        assert all(result.loaded), result.fault
        return result

    def wanted(self) -> list[Wanted]:
        """Every record, each with its place in the buffer: in order, without gaps."""
        wanted, at = [], 0
        for index in range(self.blocks + 1):
            kind, block = self._place(index)
            size_bytes = self._size_bytes(index)
            target = self.buffer[at : at + size_bytes]
            wanted.append(Wanted(kind, self.keys[block], (block + 1) * self.layout.block_tokens, target))
            at += size_bytes
        return wanted

    def _outgoing(self, index: int, payload: Bytes) -> Outgoing:
        kind, block = self._place(index)
        position = (block + 1) * self.layout.block_tokens
        return Outgoing(kind, self.keys[block], position, parent_of(self.keys, block), payload)

    def _place(self, index: int) -> tuple[Kind, int]:
        return (Kind.HISTORY, index) if index < self.blocks else (Kind.STATE, self.blocks - 1)

    def _size_bytes(self, index: int) -> int:
        return self.layout.payload_bytes(self._place(index)[0])
