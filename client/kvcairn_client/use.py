"""Tell the service what was served from this process's own pools, and give it back what it has lost meanwhile."""

import logging
import threading
from collections.abc import Sequence
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
    """One report at a time, on a daemon thread of its own; what comes meanwhile is left out, since use is only a hint.

    Thread-safe. A forked child inherits no thread, and so waits for none.
    """

    def __init__(self, pools: Pools, service: Service, queue: Queue) -> None:
        self._pools, self._service, self._queue = pools, service, queue
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def report(self, keys: Sequence[bytes], *, blocks: int, state_tokens: int | None) -> None:
        """The first `blocks` blocks were used, and the state at `state_tokens`. Never blocks; once closed, nothing."""
        if not blocks:
            return
        # The use of a block counts for its ancestors: one key stands for the whole run.
        refs = [Ref(Kind.HISTORY, keys[blocks - 1])]
        if state_tokens is not None:
            refs.append(Ref(Kind.STATE, keys[state_tokens // self._pools.model_cache.layout.block_tokens - 1]))
        with self._lock:
            if self._is_closed or (self._thread is not None and self._thread.is_alive()):
                return
            work = threading.Thread(target=self._run, args=(list(keys[:blocks]), refs), name="kvcairn-use", daemon=True)
            work.start()
            self._thread = work

    def flush(self, timeout_seconds: float) -> bool:
        """Wait for the report under way; False if the time ran out first."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def close(self, timeout_seconds: float) -> None:
        """Wait for the report under way, within a bound, and take no other."""
        with self._lock:
            self._is_closed = True
        self.flush(timeout_seconds)

    def _run(self, keys: list[bytes], refs: list[Ref]) -> None:
        """Nobody waits for a report's result, so that an error in one would pass unseen."""
        try:
            self._touch(keys, refs)
        except Exception:
            _log.exception("telling the service what was used failed")

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
