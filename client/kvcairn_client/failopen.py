"""The engine's side of a client: no fault of the service becomes an exception there."""

from collections.abc import Sequence

from kvcairn_client.client import Client
from kvcairn_client.records import FetchResult, Lookup, Outgoing, Ref, Wanted
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.errors import KvcairnError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import StoreAnswer, TenantStats


class FailOpen:
    """The verbs of a Client; a fault costs a bounded time and gives the neutral answer, never a ClientError. Thread-safe."""

    last_fault: KvcairnError | OSError | None = None
    faults: int = 0

    def __init__(self, client: Client) -> None:
        raise NotImplementedError

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup:
        raise NotImplementedError

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult:
        raise NotImplementedError

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer:
        raise NotImplementedError

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int:
        raise NotImplementedError

    def exists(self, layout: Layout, refs: Sequence[Ref]) -> list[bool]:
        raise NotImplementedError

    def report(self, layout: Layout, ref: Ref) -> bool:
        raise NotImplementedError

    def stats(self) -> TenantStats | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
