"""GroupWriter: one thread that commits whatever waits as one group, so that a sync is shared by all who wait for it."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from kvcairn_storage.errors import StorageError, StoreClosed, StoreFull

MAX_GROUP_BYTES = 32 << 20
"""Beyond this the sync is spread thin already, and everybody in a group waits longer (docs/decisions/lmdb.md)."""

MAX_GROUP_JOBS = 1024

T = TypeVar("T")
Work = Callable[[T], Any]
Commit = Callable[[Sequence[Work[T]]], list[Any]]
_LOG = logging.getLogger(__name__)


class _Job(NamedTuple):
    work: Work[Any]
    size_bytes: int
    done: "Future[Any]"


class GroupWriter(Generic[T]):
    """Runs submitted work in order, in one thread.

    commit: runs some work in one transaction, all or nothing, and returns each one's result; it raises a StorageError.
    A group that fails is tried again one by one, so that what cannot be written fails alone. Work may thus run twice.
    """

    def __init__(self, commit: Commit[T], *, make_room: Callable[[], None]) -> None:
        """make_room: called before the one retry of work that found the store full."""
        self._commit = commit
        self._make_room = make_room
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvcairn-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, size_bytes: int) -> "Future[Any]":
        """Run `work` in a transaction; the future resolves to its result once that is committed."""
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # from here on nobody can cancel it under the writer
        with self._lock:
            if not self._closed:
                self._queue.put(_Job(work, size_bytes, done))
                return done
        done.set_exception(StoreClosed("the store is closed"))
        return done

    def close(self) -> None:
        """Commit everything submitted so far and end the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            group, closing = self._next_group()
            if group:
                self._commit_group(group)
            if closing:
                return

    def _next_group(self) -> tuple[list[_Job], bool]:
        group: list[_Job] = []
        size_bytes, job = 0, self._queue.get()
        while job is not None:
            group.append(job)
            size_bytes += job.size_bytes
            if size_bytes >= MAX_GROUP_BYTES or len(group) >= MAX_GROUP_JOBS:
                return group, False
            try:
                job = self._queue.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _commit_group(self, group: Sequence[_Job]) -> None:
        try:
            results = self._commit([job.work for job in group])
        except Exception as error:  # whatever it is, those who wait must hear of it and the thread must live
            self._retry_alone(group, error)
            return
        for job, result in zip(group, results, strict=True):
            job.done.set_result(result)

    def _retry_alone(self, group: Sequence[_Job], error: Exception) -> None:
        if len(group) > 1:
            for job in group:
                self._commit_group([job])
            return
        if isinstance(error, StoreFull):
            self._retry_with_room(group[0])
            return
        if not isinstance(error, StorageError):
            _LOG.error("a write failed for an unexpected reason", exc_info=error)
        group[0].done.set_exception(error)

    def _retry_with_room(self, job: _Job) -> None:
        try:
            self._make_room()
            (result,) = self._commit([job.work])
        except Exception as error:  # as above
            job.done.set_exception(error)
        else:
            job.done.set_result(result)
