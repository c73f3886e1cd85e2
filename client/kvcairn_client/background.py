"""Storing in the background, within a bound of bytes, so that the engine never waits for it."""

from collections.abc import Sequence
from typing import Protocol

from kvcairn_client.records import Outgoing
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import StoreAnswer

DEFAULT_BYTES = 256 << 20


class Stores(Protocol):
    """What the queue needs of a Client or a FailOpen."""

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer: ...


class StoreQueue:
    """One daemon thread that stores what is submitted; thread-safe."""

    def __init__(self, target: Stores, *, max_bytes: int = DEFAULT_BYTES) -> None:
        raise NotImplementedError

    def submit(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> int:
        """Queue records; returns how many wait now because of this call. Never blocks. Payloads belong to the queue."""
        raise NotImplementedError

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything submitted was stored or given up; False if the time ran out first."""
        raise NotImplementedError

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Store what waits, within the time, then stop; False if something was left."""
        raise NotImplementedError
