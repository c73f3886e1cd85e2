"""The engine's side of a client: no fault of the service becomes an exception there."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from kvcairn_client.breaker import LIMIT_SECONDS, Breaker
from kvcairn_client.client import Client
from kvcairn_client.deadline import Clock, Deadline
from kvcairn_client.errors import BudgetExceeded, ServiceBusy, ServiceFailed, ServiceUnreachable
from kvcairn_client.mac_keys import MacKeys
from kvcairn_client.records import FetchResult, Lookup, Outgoing, Ref, Wanted
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.errors import KvcairnError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import StoreAnswer, TenantStats

Fault = KvcairnError | OSError
T = TypeVar("T")

_DOWN_OR_SLOW = (ServiceUnreachable, BudgetExceeded, ServiceBusy, ServiceFailed)
_log = logging.getLogger(__name__)


class FailOpen:
    """The verbs of a Client; a fault costs a bounded time and gives the neutral answer. Thread-safe.

    After a fault that means down or slow the service is left alone for a while (breaker.py), at least for as long as
    the failed call took: a dead service costs one bounded time, not one for every prompt. Reading and writing have a
    breaker each, since a full or slow disk says nothing about what can be read. A mistake of the caller's own, such
    as a target of the wrong size, is a ValueError all the same.

    faults: how many calls met one. last_fault: the latest; None if there was none.
    """

    def __init__(self, client: Client, *, clock: Clock = time.monotonic) -> None:
        self.faults = 0
        self.last_fault: Fault | None = None
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._reading, self._writing = Breaker(), Breaker()
        self._quiet_until = 0.0

    @property
    def is_reading(self) -> bool:
        """Whether the service is asked at all, as far as lookups and fetches go."""
        return self._reading.is_closed

    @property
    def mac_keys(self) -> MacKeys:
        """As `Client.mac_keys`."""
        return self._client.mac_keys

    def restoring(self) -> "Restoring":
        """What one restore asks, all of which together takes no longer than restore_seconds from now."""
        seconds = self._client.budgets.restore_seconds
        return Restoring(self, Deadline(seconds, budget="restore_seconds", clock=self._clock))

    def lookup(self, layout: Layout, block_keys: Sequence[bytes], *, within: Deadline | None = None) -> Lookup:
        """As `Client.lookup`; on a fault, nothing is known."""
        call = partial(self._client.lookup, layout, block_keys, within=within)
        return self._guarded(self._reading, call, Lookup(answered=False))

    def fetch(self, layout: Layout, wanted: Sequence[Wanted], *, within: Deadline | None = None) -> FetchResult:
        """As `Client.fetch`; on a fault, what had not arrived is a miss."""
        call = partial(self._client.fetch, layout, wanted, within=within)
        return self._guarded(self._reading, call, FetchResult(loaded=[False] * len(wanted)))

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer:
        """As `Client.store`; on a fault, nothing is stored."""
        call = partial(self._client.store, layout, records, codec=codec)
        return self._guarded(self._writing, call, StoreAnswer(stored=0, present=0, rejected=[]))

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int:
        """As `Client.touch`; on a fault, 0."""
        return self._guarded(self._writing, partial(self._client.touch, layout, block_keys=block_keys, refs=refs), 0)

    def exists(self, layout: Layout, refs: Sequence[Ref]) -> list[bool]:
        """As `Client.exists`; on a fault, none is."""
        return self._guarded(self._reading, partial(self._client.exists, layout, refs), [False] * len(refs))

    def report(self, layout: Layout, ref: Ref) -> bool:
        """As `Client.report`; on a fault, False."""
        return self._guarded(self._writing, partial(self._client.report, layout, ref), neutral=False)

    def stats(self) -> TenantStats | None:
        """As `Client.stats`; on a fault, None."""
        return self._guarded(self._reading, self._stats, None)

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stats(self) -> TenantStats | None:
        return self._client.stats()

    def _guarded(self, breaker: Breaker, call: Callable[[], T], neutral: T) -> T:
        """The call's answer, or `neutral` where the breaker is open or the call fails. Interrupts pass through."""
        started = self._clock()
        with self._lock:
            allowed = breaker.allows(started)
        if not allowed:
            return neutral
        try:
            answer = call()
        except (KvcairnError, OSError) as fault:
            self._note_fault(breaker, fault, started)
            return neutral
        partial_fault = answer.fault if isinstance(answer, FetchResult) else None
        if partial_fault is None:
            self._note_success(breaker)
        else:
            self._note_fault(breaker, partial_fault, started)
        return answer

    def _note_success(self, breaker: Breaker) -> None:
        with self._lock:
            was_open = not breaker.is_closed
            breaker.succeed()
        if was_open:
            _log.info("the service answers again")

    def _note_fault(self, breaker: Breaker, fault: Fault, started: float) -> None:
        now = self._clock()
        with self._lock:
            self.faults += 1
            self.last_fault = fault
            for each in self._affected(breaker, fault):
                each.fail(now, at_least_seconds=max(now - started, _asked_pause_seconds(fault)))
            level = logging.DEBUG if now < self._quiet_until else logging.WARNING
            if level == logging.WARNING:
                self._quiet_until = now + LIMIT_SECONDS
        _log.log(
            level,
            "going on without the service: %s: %s (%d faults so far)", type(fault).__name__, fault, self.faults,
        )  # fmt: skip

    def _affected(self, breaker: Breaker, fault: Fault) -> tuple[Breaker, ...]:
        """What a fault opens: both where there is no service, its own kind of call where that is slow or put off."""
        if isinstance(fault, ServiceUnreachable):
            return self._reading, self._writing
        return (breaker,) if isinstance(fault, _DOWN_OR_SLOW) else ()


@dataclass(frozen=True, slots=True)
class Restoring:
    """The verbs of one restore. However often it has to plan again, its last call is over by the one deadline."""

    source: FailOpen
    deadline: Deadline

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup:
        """As `FailOpen.lookup`."""
        return self.source.lookup(layout, block_keys, within=self.deadline)

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult:
        """As `FailOpen.fetch`."""
        return self.source.fetch(layout, wanted, within=self.deadline)


def _asked_pause_seconds(fault: Fault) -> float:
    asked = fault.retry_after_seconds if isinstance(fault, ServiceBusy) else None
    return asked or 0.0
