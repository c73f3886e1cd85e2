"""Whether a data file is safe to be opened: every page of its trees, before LMDB looks at any of them.

LMDB trusts what it reads. A flipped bit in a tree can make it loop, write over what is in use, or read outside of its
map, which kills the process. So the trees are walked here first, with pread, which a file that ends early cannot hurt.
Values are not looked at: they have checksums, and are by far the most of the file. docs/decisions/damage.md.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvcairn_storage.errors import StoreUnreadable
from kvcairn_storage.pages import (
    BIG,
    BRANCH,
    HEADER_BYTES,
    LEAF,
    META_PAGES,
    NO_PAGE,
    TABLE,
    Damage,
    Meta,
    Nodes,
    Numbers,
    Table,
    page_numbers,
    read_meta,
    read_nodes,
    read_pages,
    read_table,
    read_value_pages,
)

BATCH_PAGES = 1024
MAX_DEPTH = 32
UNWRITTEN_BYTES = 1 << 30
"""How much longer the tree may be than its file: what one commit took at the end and gave back is never written."""


def structure_fault(data: Path, *, commit: int | None = None, reads_values: bool = False) -> str | None:
    """What is wrong with the trees of a data file; None for a sound, an empty or a missing one.

    commit: whose trees, as a reader knows it that holds them while somebody writes; by default the last one's.
    reads_values: look at the head of every value as well, which takes a read of the disk each.
    Raises OSError where the file cannot be read at all.
    """
    try:
        descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(descriptor).st_size:
            walk = _Walk(descriptor, commit)
            walk.check()
            if reads_values:
                walk.check_values()
    except Damage as damage:
        return str(damage)
    finally:
        os.close(descriptor)
    return None


def check_metas(data: Path) -> None:
    """StoreUnreadable where a data file has no two meta pages, which LMDB believes in all that they say."""
    with data.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        try:
            read_meta(file.fileno())
        except Damage as damage:
            raise StoreUnreadable(
                f"{data} is damaged: {damage}; restore a backup or start on an empty directory"
            ) from None


class _Walk:
    """One look at all trees of a file."""

    def __init__(self, descriptor: int, commit: int | None) -> None:
        self._descriptor = descriptor
        self._file_bytes = os.fstat(descriptor).st_size
        self._meta: Meta = read_meta(descriptor, commit=commit)
        self._trees: list[Numbers] = []
        self._values: list[tuple[Numbers, Numbers]] = []
        self._free: list[Numbers] = []

    def check(self) -> None:
        """Damage unless all is as it must be."""
        meta = self._meta
        if not META_PAGES <= meta.pages <= (self._file_bytes + UNWRITTEN_BYTES) // meta.page_bytes:
            raise Damage(f"the file has {self._file_bytes} bytes, and is said to have {meta.pages} pages")
        for nodes in self._leaves("free pages", meta.free):
            self._free += [self._free_pages(nodes, index) for index in range(len(nodes.at))]
        for nodes in self._leaves("tables", meta.main):
            self._check_tables(nodes)
        self._check_cover()

    def check_values(self) -> None:
        """Damage unless every value that has pages of its own begins as LMDB's own does; after `check`.

        It may have more pages than it needs, which are then nobody else's.
        """
        for index, (starts, counts) in enumerate(self._values):
            pages = [read_value_pages(self._descriptor, n, page_bytes=self._meta.page_bytes) for n in starts.tolist()]
            said = np.array(pages, np.int64)
            if (said < counts).any():
                raise Damage(f"the value on page {int(starts[said < counts][0])} has fewer pages than it needs")
            self._values[index] = starts, said
        self._check_cover()

    def _check_tables(self, nodes: Nodes) -> None:
        for index in range(len(nodes.at)):
            name = nodes.key(index).decode(errors="replace")
            if nodes.flags[index] != TABLE:
                raise Damage(f"{name!r} is no table")
            for leaves in self._leaves(name, read_table(nodes.value(index))):
                if (leaves.flags & ~BIG).any():
                    raise Damage(f"a value of table {name!r} has flags that none has")

    def _leaves(self, name: str, table: Table) -> Iterator[Nodes]:
        """The leaves of a tree, many at a time; every page of it is noted, and so is what its values take."""
        if table.root == NO_PAGE:
            if table.entries or table.depth:
                raise Damage(f"table {name!r} has {table.entries} entries and no root")
            return
        if not 1 <= table.depth <= MAX_DEPTH or not META_PAGES <= table.root < self._meta.pages:
            raise Damage(f"table {name!r} has a depth of {table.depth}, and page {table.root} for a root")
        level, entries = np.array([table.root], np.int64), 0
        for _ in range(table.depth - 1):
            level = np.concatenate([nodes.sizes for nodes in self._read(level, BRANCH)])
        for leaves in self._read(level, LEAF):
            entries += len(leaves.at)
            self._note_values(leaves)
            yield leaves
        if entries != table.entries:
            raise Damage(f"table {name!r} has {entries} entries, and is said to have {table.entries}")

    def _read(self, numbers: Numbers, kind: int) -> Iterator[Nodes]:
        """Pages of one level, of which none may be used elsewhere."""
        if numbers.min() < META_PAGES or numbers.max() >= self._meta.pages or len(numbers) > self._meta.pages:
            raise Damage(f"a branch refers to page {int(numbers.max())} of {self._meta.pages}")
        self._trees.append(numbers)
        for start in range(0, len(numbers), BATCH_PAGES):
            some = numbers[start : start + BATCH_PAGES]
            yield read_nodes(read_pages(self._descriptor, some, page_bytes=self._meta.page_bytes), some, kind)

    def _note_values(self, nodes: Nodes) -> None:
        index = np.flatnonzero(nodes.flags & BIG)
        if index.size:
            starts = page_numbers(nodes, index)
            counts = (HEADER_BYTES - 1 + nodes.sizes[index]) // self._meta.page_bytes + 1
            self._values.append((starts, counts))

    def _free_pages(self, nodes: Nodes, index: int) -> Numbers:
        """One list of free pages: a count, then their numbers, the highest first.

        Room behind them is no fault: a commit reserves it before it knows how many pages are left to be named.
        """
        packed = self._long_value(nodes, index) if nodes.flags[index] & BIG else nodes.value(index)
        numbers = np.frombuffer(packed[: len(packed) // 8 * 8], "<i8")
        if len(packed) != nodes.sizes[index] or len(packed) % 8 or not numbers.size:
            raise Damage("a list of free pages has another length than it says")
        count = int(numbers[0])
        if not 0 <= count < numbers.size:
            raise Damage(f"a list of free pages names {count} of them, and has room for {numbers.size - 1}")
        return numbers[1 : count + 1]

    def _long_value(self, nodes: Nodes, index: int) -> bytes:
        at = int(page_numbers(nodes, np.array([index]))[0]) * self._meta.page_bytes + HEADER_BYTES
        size_bytes = int(nodes.sizes[index])
        if not 0 < at <= self._file_bytes - size_bytes:
            raise Damage(f"a list of free pages is said to be at byte {at}")
        return os.pread(self._descriptor, size_bytes, at)

    def _check_cover(self) -> None:
        """No page is used twice, none is free and used, and all are inside the file."""
        trees = np.concatenate([np.empty(0, np.int64), *self._trees])
        starts = np.concatenate([trees, *(starts for starts, _ in self._values)])
        counts = np.concatenate([np.ones_like(trees), *(counts for _, counts in self._values)])
        order = np.argsort(starts)
        starts, ends = starts[order], (starts + counts)[order]
        last = min(self._meta.pages, self._file_bytes // self._meta.page_bytes)
        if starts.size and (starts[0] < META_PAGES or ends.max() > last):
            raise Damage(f"the tree goes on to page {int(ends.max())}, and the file ends at {last}")
        if (ends[:-1] > starts[1:]).any():
            raise Damage("a page is used twice")
        self._check_free(starts, ends)

    def _check_free(self, starts: Numbers, ends: Numbers) -> None:
        free = np.sort(np.concatenate([np.empty(0, np.int64), *self._free]))
        if not free.size:
            return
        if free[0] < META_PAGES or free[-1] >= self._meta.pages or (free[:-1] == free[1:]).any():
            raise Damage("a page is free twice, or is none")
        before = np.searchsorted(starts, free, "right") - 1
        if starts.size and ((before >= 0) & (free < ends[before])).any():
            raise Damage("a page is free and in use")
