"""Made-up prefixes of a given layout: random payloads, real keys; and the store and fetch of a whole one."""

from dataclasses import dataclass, field

import numpy as np

from kvcairn_client.client import Client
from kvcairn_client.records import Outgoing, Wanted
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
        history, state = (self.layout.payload_bytes(kind) for kind in (Kind.HISTORY, Kind.STATE))
        return self.blocks * history + state

    def records(self, start: int, stop: int) -> list[Outgoing]:
        """The records [start, stop) of this prefix, the state last, filled with random bytes of this seed."""
        return [self._record(index) for index in range(start, min(stop, self.blocks + 1))]

    def _record(self, index: int) -> Outgoing:
        kind, block = (Kind.HISTORY, index) if index < self.blocks else (Kind.STATE, self.blocks - 1)
        payload = np.random.default_rng((self.seed, index)).bytes(self.layout.payload_bytes(kind))
        position = (block + 1) * self.layout.block_tokens
        return Outgoing(kind, self.keys[block], position, parent_of(self.keys, block), payload)

    def store(self, client: Client) -> None:
        """Persist the whole prefix, a bounded number of records at a time; returns once all is committed."""
        for start in range(0, self.blocks + 1, GROUP_RECORDS):
            answer = client.store(self.layout, self.records(start, start + GROUP_RECORDS), codec="raw")
            assert not answer.rejected, answer.rejected

    def fetch(self, client: Client) -> None:
        """Look the prefix up and restore all of it, verified, into this prefix's buffer."""
        found = client.lookup(self.layout, self.keys)
        assert found.history_blocks == self.blocks, found
        result = client.fetch(self.layout, self._wanted())
        assert all(result.loaded), result.fault

    def _wanted(self) -> list[Wanted]:
        wanted, at = [], 0
        for index in range(self.blocks + 1):
            kind, block = (Kind.HISTORY, index) if index < self.blocks else (Kind.STATE, self.blocks - 1)
            size = self.layout.payload_bytes(kind)
            position = (block + 1) * self.layout.block_tokens
            wanted.append(Wanted(kind, self.keys[block], position, self.buffer[at : at + size]))
            at += size
        return wanted
