"""What an engine has beside it: the service behind a fail-open wrapper, the store queue, and the use reporter."""

import time
from collections.abc import Sequence
from typing import Protocol

from kvcairn_client.background import StoreQueue
from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_client.failopen import FailOpen
from kvcairn_client.mac_keys import NO_KEYS, MacKeys, mac_keys
from kvcairn_client.persist import Offers
from kvcairn_client.records import FetchResult, Lookup, Outgoing, Ref, Wanted
from kvcairn_client.restore import NOTHING_KNOWN, Restored, Source
from kvcairn_client.sessions import Pools
from kvcairn_client.use import UseReporter
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import StoreAnswer
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero

CLOSE_SECONDS = 10.0


class Service(Protocol):
    """The verbs that a prefill needs; FailOpen has them, and never raises for a fault of the service."""

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup: ...

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult: ...

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer: ...

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int: ...


def mac_keys_of(client: Client | Service | str | None) -> MacKeys:
    """What a prefill's records are signed with: the client's own keys; with a URL, those that the environment names."""
    if isinstance(client, str):
        return mac_keys(None, None)
    keys = getattr(client, "mac_keys", NO_KEYS)
    assert isinstance(keys, MacKeys)  # noqa: S101 - of a Client, or of what stands before one
    return keys


class Sidecar:
    """Everything of a prefill that concerns the service; without one, the same calls do nothing. Thread-safe."""

    def __init__(
        self,
        pools: Pools,
        client: Client | Service | str | None,
        *,
        budgets: Budgets | None,
        queue_bytes: int,
        mac_keys: MacKeys = NO_KEYS,
    ) -> None:
        """client: a Client, something that never raises for a fault, a URL of which this makes a client, or None.

        mac_keys: of the client made from a URL.
        """
        if budgets is not None and not isinstance(client, str):
            raise ValueError("budgets belong to a client made from a URL: give them to the Client itself")
        self._own: Client | None = None
        if isinstance(client, str):
            client = self._own = Client(client, budgets=budgets or Budgets(), mac_key=mac_keys.keys)
        self.service: Service | None = FailOpen(client) if isinstance(client, Client) else client
        self._pools, self._terms = pools, NOTHING_KNOWN
        self._queue: StoreQueue | None = None
        self._use: UseReporter | None = None
        if self.service is not None:
            self._queue = StoreQueue(self.service, max_bytes=queue_bytes)
            self._use = UseReporter(pools, self.service, self._queue)

    @property
    def strategy(self) -> Full | Periodic | Zero | Anchored:
        """The tenant's, as the service last said; anchored until it does."""
        return self._terms.strategy

    def source(self) -> Source | None:
        """What one restore asks, from now on; None without a service."""
        return self.service.restoring() if isinstance(self.service, FailOpen) else self.service

    def offers(self, keys: Sequence[bytes], restored: Restored) -> Offers:
        """Where one run's new records go; takes over the strategy and the codec that the service named for it."""
        if restored.found.answered:
            self._terms = restored.found
        return Offers(self._pools, self._queue, keys, restored, codec=self._terms.codec)

    def report_use(self, keys: Sequence[bytes], restored: Restored) -> None:
        """Tell the service, in the background, what this run took from the pools instead of fetching it."""
        blocks = restored.plan.load_tokens // self._pools.model_cache.layout.block_tokens
        if self._use is not None and blocks > restored.loaded.fetched_blocks:
            self._use.report(keys, blocks=blocks, state_tokens=restored.plan.state_tokens)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all that was offered is stored or given up; False if the time ran out first."""
        if self._queue is None or self._use is None:
            return True
        ends = time.monotonic() + timeout_seconds
        is_reported = self._use.flush(timeout_seconds)
        return self._queue.flush(max(0.0, ends - time.monotonic())) and is_reported

    def close(self) -> None:
        """Store what waits, within a bound, and stop. A second close does nothing."""
        if self._use is not None and self._queue is not None:
            self._use.close(CLOSE_SECONDS)
            self._queue.close(CLOSE_SECONDS)
        if self._own is not None:
            self._own.close()
