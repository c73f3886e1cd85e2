"""Tell the service what was served from this process's own pools, and give it back what it has lost meanwhile."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from kvcairn_client.persist import Queue, pooled_records
from kvcairn_client.records import Lookup, Ref
from kvcairn_client.sessions import Pools
from kvcairn_protocol.layout import Kind, Layout

_log = logging.getLogger(__name__)


class Service(Protocol):
    """What this asks of a service; never raises for a fault of it."""

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup: ...

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int: ...


class UseReporter:
    """One background thread. One report waits at most; what comes meanwhile is left out, since use is only a hint."""

    def __init__(self, pools: Pools, service: Service, queue: Queue) -> None:
        self._pools, self._service, self._queue = pools, service, queue
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvcairn-use")
        self._last: Future[None] | None = None

    def report(self, keys: Sequence[bytes], *, blocks: int, state_tokens: int | None) -> None:
        """The first `blocks` blocks were used, and the state at `state_tokens`. Never blocks."""
        if not blocks or (self._last is not None and not self._last.done()):
            return
        # The use of a block counts for its ancestors: one key stands for the whole run.
        refs = [Ref(Kind.HISTORY, keys[blocks - 1])]
        if state_tokens is not None:
            refs.append(Ref(Kind.STATE, keys[state_tokens // self._pools.model_cache.layout.block_tokens - 1]))
        self._last = self._thread.submit(self._touch, list(keys[:blocks]), refs)
        self._last.add_done_callback(_log_failure)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait for the report under way; False if the time ran out first."""
        return self._last is None or not wait([self._last], timeout=timeout_seconds).not_done

    def close(self, timeout_seconds: float) -> None:
        """Wait for the report under way, within a bound, and take no other."""
        self.flush(timeout_seconds)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _touch(self, keys: list[bytes], refs: list[Ref]) -> None:
        layout = self._pools.model_cache.layout
        if self._service.touch(layout, refs=refs) >= len(refs):
            return
        found = self._service.lookup(layout, keys)
        if not found.answered:
            return
        states = [position for position in self._pools.states.positions(keys) if position not in found.state_tokens]
        records = pooled_records(self._pools, keys, first_block=found.history_blocks, states=states)
        if records:
            _log.info("the service lacks %d records of a prefix that is in use here; offering them again", len(records))
            self._queue.submit(layout, records, codec=found.codec)


def _log_failure(report: "Future[None]") -> None:
    """Nobody waits for a report's result, so that an error in one would pass unseen."""
    error = None if report.cancelled() else report.exception()
    if error is not None:
        _log.error("telling the service what was used failed", exc_info=error)
