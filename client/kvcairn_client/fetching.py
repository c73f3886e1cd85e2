"""Fetching over the network: request after request on one connection, or shares of them at once on several.

One is the default: where memory is the limit, as on loopback, more gain nothing. Networks that cap the rate of a single
flow are what more are for (docs/decisions/pipelining.md).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import NamedTuple

from kvcairn_client.connections import IDLE_CONNECTIONS
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import ClientError
from kvcairn_client.receive import Tally
from kvcairn_client.records import FetchResult, Ref, Wanted
from kvcairn_client.registry import Registry
from kvcairn_client.transport import Transport
from kvcairn_protocol.layout import Layout

SHARE_BYTES = 16 << 20
"""A fetch is shared out only as far as each connection gets this much: below, a second request costs what it gains."""


class Fetched(NamedTuple):
    """A fetch's result; which records were damaged, and which were whole but of somebody without the MAC key."""

    result: FetchResult
    bad: list[Ref]
    forged: list[Ref]


class Fetching:
    """Fetches over up to `connections` connections. Thread-safe."""

    def __init__(self, transport: Transport, registry: Registry, *, connections: int, control_seconds: float) -> None:
        if not 1 <= connections <= IDLE_CONNECTIONS:
            raise ValueError(f"a fetch takes 1 to {IDLE_CONNECTIONS} connections; found {connections}")
        self._transport, self._registry = transport, registry
        self._connections, self._control_seconds = connections, control_seconds

    def fetch(
        self, layout: Layout, wanted: Sequence[Wanted], deadline: Deadline, *, mac_key: bytes | None = None
    ) -> "Fetched":
        """As `Client.fetch`, and which records were no good. wanted: with flat targets."""
        if not wanted:
            return Fetched(FetchResult(loaded=[]), [], [])
        control = deadline.within(self._control_seconds, budget="control_seconds")
        self._registry.register(layout, control)
        step = self._registry.limits(control).keys_per_request
        parts = shares(wanted, at_most=self._connections)
        tallies = [Tally(layout, asked=len(part), mac_key=mac_key) for part in parts]
        transfers = [
            partial(self._transfer, layout, part, tally, step, deadline)
            for part, tally in zip(parts, tallies, strict=True)
        ]
        fault = next((found for found in _run_together(transfers) if found is not None), None)
        if fault is not None and not any(tally.has_begun for tally in tallies):
            raise fault
        bad = list(chain.from_iterable(tally.bad for tally in tallies))
        forged = list(chain.from_iterable(tally.forged for tally in tallies))
        return Fetched(_merged(tallies, fault), bad, forged)

    def _transfer(
        self, layout: Layout, wanted: Sequence[Wanted], tally: Tally, step: int, deadline: Deadline
    ) -> ClientError | None:
        """One share, on one connection at a time, at most `step` records a request; returns what ended it early."""
        try:
            for start in range(0, len(wanted), step):
                call = partial(self._transport.fetch, layout, wanted[start : start + step], tally, deadline)
                self._registry.with_layout(layout, deadline, call)
        except ClientError as error:
            return error
        return None


def shares(wanted: Sequence[Wanted], *, at_most: int) -> list[Sequence[Wanted]]:
    """Neighbours stay together, in parts of about equal size, of SHARE_BYTES or more. Pure."""
    total_bytes = sum(len(item.target) for item in wanted)
    count = max(1, min(at_most, total_bytes // SHARE_BYTES))
    parts: list[Sequence[Wanted]] = []
    start = passed_bytes = 0
    for stop, item in enumerate(wanted, start=1):
        passed_bytes += len(item.target)
        if passed_bytes * count >= total_bytes * (len(parts) + 1):
            parts.append(wanted[start:stop])
            start = stop
    return parts


def _run_together(transfers: "Sequence[partial[ClientError | None]]") -> list[ClientError | None]:
    """The first in the calling thread, each other one in a thread of its own; returns when all have ended."""
    first, *others = transfers
    if not others:
        return [first()]
    with ThreadPoolExecutor(len(others), thread_name_prefix="kvcairn-fetch") as threads:
        running = [threads.submit(transfer) for transfer in others]
        return [first(), *(each.result() for each in running)]


def _merged(tallies: Sequence[Tally], fault: ClientError | None) -> FetchResult:
    results = [tally.result() for tally in tallies]
    loaded = list(chain.from_iterable(result.loaded for result in results))
    return FetchResult(
        loaded=loaded,
        bytes_received=sum(result.bytes_received for result in results),
        forged_records=sum(result.forged_records for result in results),
        fault=fault,
    )
