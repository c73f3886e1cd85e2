"""Storing in the background, within a bound of bytes, so that the engine never waits for it."""

import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from kvcairn_client.records import Outgoing
from kvcairn_client.waiting import Item, WaitingRecords
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.errors import KvcairnError
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import StoreAnswer

DEFAULT_BYTES = 256 << 20

BATCH_BYTES = 64 << 20
"""Stored at a time: a batch makes room for new records only once all of it is stored."""

_NOTHING = StoreAnswer(stored=0, present=0, rejected=[])

_log = logging.getLogger(__name__)


class Stores(Protocol):
    """What the queue needs of a Client or a FailOpen."""

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer: ...


class QueueCounts(NamedTuple):
    """What became of the records submitted. present: were stored already. failed: the service did not take them.

    dropped: never sent, for want of room. held_bytes: payloads waiting or under way.
    """

    stored: int
    present: int
    failed: int
    dropped: int
    held_bytes: int


class StoreQueue:
    """One daemon thread that stores what is submitted, what waits for the same layout in one body. Thread-safe.

    max_bytes: the most that payloads waiting and under way may hold. Beyond it the newest states and windows are
    dropped first, then new history: both can be computed again.
    """

    def __init__(self, target: Stores, *, max_bytes: int = DEFAULT_BYTES) -> None:
        self._target = target
        self._records = WaitingRecords(max_bytes)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._stored = self._present = self._failed = 0

    def submit(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> int:
        """Queue records; returns how many wait now because of this call. Never waits for the network.

        The payloads belong to the queue from here on: they must not change. A record that waits already is not taken
        again; once closed, none is.
        """
        items = [Item(layout, record, codec) for record in records]
        with self._changed:
            if self._is_closing:
                return 0
            added = sum(self._records.add(item) for item in items)
            if added:
                self._start_thread()
                self._changed.notify_all()
        return added

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything submitted so far was stored or given up; False if the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._records.is_idle, timeout_seconds)

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Store what waits, within the time, then stop; False if something was left, which is dropped.

        What was all stored leaves no thread behind: one that still frees tensors while the interpreter ends would take
        the process down with it.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            is_done = self._changed.wait_for(lambda: self._records.is_idle, timeout_seconds)
            self._records.drop_all()
            self._changed.notify_all()
            thread = self._thread
        if is_done and thread is not None:
            thread.join(timeout_seconds)
        return is_done

    def counts(self) -> QueueCounts:
        """The counts of this moment."""
        with self._changed:
            records = self._records
            return QueueCounts(self._stored, self._present, self._failed, records.dropped, records.held_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_thread(self) -> None:
        """Start the thread with the first record, and anew in a forked child, which has none."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="kvcairn-store", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._finish(batch, self._store(batch))

    def _next_batch(self) -> list[Item]:
        """Wait for records; an empty batch means that the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._records) or self._is_closing)
            return self._records.take(at_most_bytes=BATCH_BYTES)

    def _store(self, batch: list[Item]) -> StoreAnswer:
        """Store one batch. Whatever goes wrong costs this batch alone: the thread outlives even a mistake of ours."""
        first = batch[0]
        try:
            return self._target.store(first.layout, [item.record for item in batch], codec=first.codec)
        except KvcairnError as error:
            _log.warning("%d records were not stored: %s: %s", len(batch), type(error).__name__, error)
        except Exception:
            _log.exception("%d records were not stored", len(batch))
        return _NOTHING

    def _finish(self, batch: list[Item], answer: StoreAnswer) -> None:
        with self._changed:
            self._stored += answer.stored
            self._present += answer.present
            self._failed += max(0, len(batch) - answer.stored - answer.present)
            self._records.release(batch)
            # The thread's own name for the batch would keep its payloads until the next one comes.
            batch.clear()
            self._changed.notify_all()
