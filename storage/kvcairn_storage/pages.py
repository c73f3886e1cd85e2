"""LMDB's data file as bytes: its two meta pages, and one page of a tree in arrays. No map: read with pread.

The format is that of LMDB 0.9 (data version 1) on a little-endian machine of 64 bits, as mdb.c lays it out: MDB_page,
MDB_node, MDB_meta, MDB_db. What is read is checked against the page that it came from, and never trusted beyond it.
"""

import os
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08
BIG, TABLE = 0x01, 0x02
"""Flags of a node: its value lies on pages of its own; its value is the root of a table."""

HEADER_BYTES, NODE_BYTES = 16, 8
NO_PAGE = 2**64 - 1
META_PAGES = 2
_KINDS = {BRANCH: "branch", LEAF: "leaf"}
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEADER = struct.Struct("<QHHHH")
_META = struct.Struct("<II8xQ48s48sQQ")
_TABLE = struct.Struct("<IHHQQQQQ")

Numbers = NDArray[np.int64]
Octets = NDArray[np.uint8]


class Damage(ValueError):
    """The file is not what LMDB would have written; the message says where."""


class Table(NamedTuple):
    """The root of one B-tree. page_bytes: of the whole file, in the table of free pages alone."""

    page_bytes: int
    flags: int
    depth: int
    entries: int
    root: int


class Meta(NamedTuple):
    """A meta page: the state of the file after one commit."""

    free: Table
    main: Table
    pages: int
    commit: int

    @property
    def page_bytes(self) -> int:
        return self.free.page_bytes


class Nodes(NamedTuple):
    """The nodes of some pages of one level of a tree. at: where each starts in `pages`, the pages one after the other.

    sizes: how long its value is; in a branch the number of its child.
    """

    pages: Octets
    at: Numbers
    flags: Numbers
    key_sizes: Numbers
    sizes: Numbers

    @property
    def values_at(self) -> Numbers:
        return self.at + NODE_BYTES + self.key_sizes

    def key(self, index: int) -> bytes:
        start = int(self.at[index]) + NODE_BYTES
        return self.pages[start : start + int(self.key_sizes[index])].tobytes()

    def value(self, index: int) -> bytes:
        """A value that lies in its node."""
        start = int(self.values_at[index])
        return self.pages[start : start + int(self.sizes[index])].tobytes()


def read_table(packed: bytes) -> Table:
    """MDB_db."""
    if len(packed) != _TABLE.size:
        raise Damage(f"the root of a table has {len(packed)} bytes")
    page_bytes, flags, depth, _, _, _, entries, root = _TABLE.unpack(packed)
    return Table(page_bytes, flags, depth, entries, root)


def read_meta(descriptor: int, *, commit: int | None = None) -> Meta:
    """The meta page of that commit, or else the newer of the two; Damage where there is none such."""
    first = _read_meta(descriptor, 0, at=0)
    second = _read_meta(descriptor, 1, at=first.page_bytes)
    if first.page_bytes != second.page_bytes:
        raise Damage(f"the meta pages have {first.page_bytes} and {second.page_bytes} bytes a page")
    newer = max(first, second, key=lambda meta: meta.commit)
    if commit is None or commit == newer.commit:
        return newer
    found = next((meta for meta in (first, second) if meta.commit == commit), None)
    if found is None:
        raise Damage(f"no meta page is of commit {commit}")
    return found


def _read_meta(descriptor: int, number: int, *, at: int) -> Meta:
    packed = os.pread(descriptor, HEADER_BYTES + _META.size, at)
    if len(packed) < HEADER_BYTES + _META.size:
        raise Damage(f"meta page {number} is not there")
    own_number, _, flags, _, _ = _HEADER.unpack_from(packed)
    magic, version, _, free, main, last, commit = _META.unpack_from(packed, HEADER_BYTES)
    meta = Meta(read_table(free), read_table(main), last + 1, commit)
    is_power_of_two = meta.page_bytes & (meta.page_bytes - 1) == 0
    if (magic, version, flags, own_number) != (_MAGIC, _VERSION, META, number):
        raise Damage(f"meta page {number} is none of data version {_VERSION}")
    if not (512 <= meta.page_bytes <= 32768 and is_power_of_two):
        raise Damage(f"meta page {number} says that a page has {meta.page_bytes} bytes")
    if commit and commit % META_PAGES != number:
        raise Damage(f"meta page {number} is said to be of commit {commit}, which has the other one")
    return meta


def read_pages(descriptor: int, numbers: Numbers, *, page_bytes: int) -> Octets:
    """Whole pages, one after the other; Damage where the file ends before one."""
    pages = np.empty(len(numbers) * page_bytes, np.uint8)
    view = memoryview(pages.data)
    for index, number in enumerate(numbers.tolist()):
        target = view[index * page_bytes : (index + 1) * page_bytes]
        if os.preadv(descriptor, [target], number * page_bytes) < page_bytes:
            raise Damage(f"page {number} lies beyond the end of the file")
    return pages


def read_nodes(pages: Octets, numbers: Numbers, kind: int) -> Nodes:
    """The nodes of pages of that kind and these numbers, each inside its page; Damage where there are none such."""
    page_bytes = len(pages) // len(numbers)
    heads = pages.reshape(len(numbers), page_bytes)[:, :HEADER_BYTES]
    own_numbers = heads[:, :8].copy().view("<i8")[:, 0]
    flags, lower, upper = heads[:, 10:].copy().view("<u2").astype(np.int64).T
    wrong = (
        (own_numbers != numbers) | (flags != kind) | (lower <= HEADER_BYTES) | (lower > upper) | (upper > page_bytes)
    )
    wrong |= (lower & 1) | (upper & 1) != 0
    if wrong.any():
        raise Damage(f"page {numbers[wrong][0]} is not the {_KINDS[kind]} that it must be")
    counts = (lower - HEADER_BYTES) // 2
    page = np.repeat(np.arange(len(numbers)), counts)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    words = pages.view("<u2")
    at = words[(page * page_bytes + HEADER_BYTES) // 2 + place].astype(np.int64)
    wrong = (at < upper[page]) | (at > page_bytes - NODE_BYTES) | (at & 1 != 0)
    if wrong.any():
        raise Damage(f"page {numbers[page[wrong]][0]} has a node outside of itself")
    nodes = _nodes(pages, at + page * page_bytes, kind)
    _check_packing(nodes, numbers, page_bytes, upper, kind)
    return nodes


def _nodes(pages: Octets, at: Numbers, kind: int) -> Nodes:
    words = pages.view("<u2")
    low, high, flags, key_sizes = (words[at // 2 + field].astype(np.int64) for field in range(4))
    sizes = low | high << 16
    if kind == BRANCH:
        return Nodes(pages, at, np.zeros_like(at), key_sizes, sizes | flags << 32)
    return Nodes(pages, at, flags, key_sizes, sizes)


def _check_packing(nodes: Nodes, numbers: Numbers, page_bytes: int, upper: Numbers, kind: int) -> None:
    """Nodes lie side by side from `upper` to their page's end: none overlaps another, and none goes beyond."""
    sizes = NODE_BYTES + nodes.key_sizes
    if kind == LEAF:
        sizes = sizes + np.where(nodes.flags & BIG, 8, nodes.sizes)
    order = np.argsort(nodes.at)
    starts, ends = nodes.at[order], (nodes.at + sizes + (sizes & 1))[order]
    first = np.flatnonzero(np.diff(starts // page_bytes, prepend=-1))
    follows = np.append(0, ends[:-1])
    follows[first] = starts[first] // page_bytes * page_bytes + upper
    last = np.append(first[1:], len(starts)) - 1
    wrong = starts != follows
    wrong[last] |= ends[last] % page_bytes != 0
    if wrong.any():
        raise Damage(f"page {numbers[starts[wrong][0] // page_bytes]} has nodes that overlap, or room between them")


def read_value_pages(descriptor: int, number: int, *, page_bytes: int) -> int:
    """How many pages the value has that begins at that page, as it says itself; Damage where none does."""
    own_number, _, flags, low, high = _HEADER.unpack(os.pread(descriptor, HEADER_BYTES, number * page_bytes))
    if (own_number, flags) != (number, OVERFLOW):
        raise Damage(f"page {number} is not the first of a value")
    return int(low | high << 16)


def page_numbers(nodes: Nodes, index: Numbers) -> Numbers:
    """Where the values of these nodes begin that lie on pages of their own."""
    octets = nodes.pages[nodes.values_at[index][:, None] + np.arange(8)]
    numbers: Numbers = octets.view("<i8").reshape(-1)
    return numbers
