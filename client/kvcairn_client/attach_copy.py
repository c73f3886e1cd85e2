"""Copying records out of a map into their targets, each verified there, on two threads.

A record is judged by its copy: what a map shows can be another record's bytes a moment later, a copy cannot. numpy
copies, xxhash hashes and zstandard decodes without the interpreter's lock, so that two threads are faster than one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager

import numpy as np

from kvcairn_client.deadline import Deadline
from kvcairn_client.records import Wanted
from kvcairn_client.verify import check_wanted, load
from kvcairn_protocol.codec import RAW
from kvcairn_protocol.errors import BadMac, CodecError, RecordError, TruncatedRecord
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.record import HEADER_BYTES, parse_header

READ_RECORDS = 16
READ_BYTES = 16 << 20
"""The most that is read in one transaction: pages that are freed meanwhile cannot be used again before it ends."""

ALONE_BYTES = 4 << 20
"""Less than this is copied sooner than a second thread has begun."""

Views = Callable[[Sequence[Wanted]], AbstractContextManager[list[memoryview | None]]]


class Copies:
    """One fetch's records. answers: a loaded one's bytes as stored, 0 for one that is not there, else None."""

    def __init__(self, layout: Layout, wanted: Sequence[Wanted], *, mac_key: bytes | None = None) -> None:
        self.answers: list[int | None] = [None] * len(wanted)
        self._layout, self._wanted, self._mac_key = layout, wanted, mac_key
        self._runs = deque(runs([len(item.target) for item in wanted]))

    def run(self, views: Views, helper: Executor, deadline: Deadline) -> None:
        """Copy all, with the help of another thread; raises what stopped it. No target is written once it returned.

        views: the records of some of the wanted, in order, None for what is not there; good inside the with block.
        """
        if sum(len(item.target) for item in self._wanted) < ALONE_BYTES:
            self._work(views, deadline)
            return
        helping = helper.submit(self._work, views, deadline)
        try:
            self._work(views, deadline)
        finally:
            self._runs.clear()
            error = None if helping.cancel() else helping.exception()
        if error is not None:
            raise error

    def _work(self, views: Views, deadline: Deadline) -> None:
        scratch = bytearray()
        while True:
            deadline.remaining_seconds()
            try:
                run = self._runs.popleft()
            except IndexError:
                return
            wanted = self._wanted[run.start : run.stop]
            with views(wanted) as records:
                for index, item, record in zip(run, wanted, records, strict=True):
                    self.answers[index] = 0 if record is None else self._copied(item, record, scratch)

    def _copied(self, item: Wanted, record: memoryview, scratch: bytearray) -> int | None:
        return copy_verified(self._layout, item, record, scratch, mac_key=self._mac_key)


def copy_verified(
    layout: Layout, wanted: Wanted, record: memoryview, scratch: bytearray, *, mac_key: bytes | None = None
) -> int | None:
    """Copy a record's payload into its target, decoded; its bytes if the copy is what was asked for, None if not.

    scratch: holds the copy of a compressed payload; grows.
    """
    try:
        _copy(layout, wanted, record, scratch, mac_key)
    except (RecordError, CodecError, BadMac):
        return None
    return len(record)


def _copy(layout: Layout, wanted: Wanted, record: memoryview, scratch: bytearray, mac_key: bytes | None) -> None:
    packed = bytes(record[:HEADER_BYTES])
    header = parse_header(packed, max_raw_bytes=len(wanted.target))
    check_wanted(header, layout, wanted)
    if len(record) != header.record_bytes:
        raise TruncatedRecord(f"a record of {header.record_bytes} bytes; found {len(record)}")
    if header.codec == RAW:
        stored = wanted.target
    else:
        scratch.extend(bytes(max(0, header.stored_bytes - len(scratch))))
        stored = memoryview(scratch)[: header.stored_bytes]
    np.copyto(np.frombuffer(stored, np.uint8), np.frombuffer(record, np.uint8, offset=HEADER_BYTES))
    load(header, packed, stored, layout, wanted, mac_key=mac_key)


def runs(sizes: Sequence[int]) -> Iterator[range]:
    """Cut records of these sizes into runs to be read in one transaction each. Pure."""
    start = size_bytes = 0
    for stop, size in enumerate(sizes):
        if stop > start and (stop - start >= READ_RECORDS or size_bytes + size > READ_BYTES):
            yield range(start, stop)
            start, size_bytes = stop, 0
        size_bytes += size
    if start < len(sizes):
        yield range(start, len(sizes))
