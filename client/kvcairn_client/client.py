"""The client of one kvcairn service: lookup, fetch, store, statistics."""

import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kvcairn_client.budgets import Budgets
from kvcairn_client.records import FetchResult, Lookup, Outgoing, Ref, Wanted
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.messages import ServiceInfo, StoreAnswer, TenantStats

DEFAULT_URL = "http://127.0.0.1:7420"


class Client:
    """Everything that one service can be asked; raises ClientError (errors.py) where it fails. Thread-safe."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        budgets: Budgets = Budgets(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        raise NotImplementedError

    def service(self) -> ServiceInfo:
        raise NotImplementedError

    def register(self, layout: Layout) -> None:
        raise NotImplementedError

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup:
        raise NotImplementedError

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult:
        raise NotImplementedError

    def fetch_bytes(self, layout: Layout, kind: Kind, key: bytes) -> bytes | None:
        raise NotImplementedError

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer:
        raise NotImplementedError

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int:
        raise NotImplementedError

    def exists(self, layout: Layout, refs: Sequence[Ref]) -> list[bool]:
        raise NotImplementedError

    def report(self, layout: Layout, ref: Ref) -> bool:
        raise NotImplementedError

    def stats(self) -> TenantStats:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
