"""Rows of bytes in one host tensor: reference-counted, found by key, the least recently used leaf reclaimed."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable

import torch

NO_PARENT = b""


class Slab:
    """A fixed number of rows of `row_bytes` each; thread-safe.

    A row is unused, held (one reference or more), or idle: findable by its key, and reclaimed when nothing is unused.
    A holder may write its row until it publishes it; from then on the row never changes while anybody holds it.
    """

    def __init__(self, *, rows: int, row_bytes: int, pin: bool = False) -> None:
        """pin: page-locked memory, which a GPU copies from without a detour. Pages are touched only when used."""
        if rows < 1:
            raise ValueError(f"a pool has at least one row; found {rows}")
        # A tensor made in inference mode could never be written outside of it again.
        with torch.inference_mode(mode=False):
            self.bytes = torch.empty((rows, row_bytes), dtype=torch.uint8, device="cpu", pin_memory=pin)
        self._unused = list(range(rows - 1, -1, -1))
        self._references: Counter[int] = Counter()
        self._row_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._parent_of: dict[bytes, bytes] = {}
        self._children: Counter[bytes] = Counter()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.RLock()

    def __contains__(self, key: bytes) -> bool:
        return key in self._row_of

    def __len__(self) -> int:
        """How many rows can be found by a key."""
        return len(self._row_of)

    @property
    def capacity(self) -> int:
        return self.bytes.shape[0]

    @property
    def free_rows(self) -> int:
        """How many rows could be taken now: unused or idle ones."""
        return len(self._unused) + len(self._idle)

    def view(self, row: int) -> memoryview:
        """A row's bytes, writable, without a copy; valid while the row is held."""
        return self.bytes[row].numpy().data

    def take(self) -> int | None:
        """A row to write, held once; reclaims the least recently used idle leaf. None if every row is held."""
        with self._lock:
            if not self._unused and not self._reclaim():
                return None
            row = self._unused.pop()
            self._references[row] = 1
            return row

    def take_filled(self, fill: Callable[[torch.Tensor], object]) -> int | None:
        """As `take`, written by `fill`, which is given the row's bytes; nothing is held if it raises."""
        row = self.take()
        if row is None:
            return None
        try:
            fill(self.bytes[row])
        except BaseException:
            self.release(row)
            raise
        return row

    def acquire(self, key: bytes) -> int | None:
        """The row under a key, held once more; None if it is not here."""
        with self._lock:
            row = self._row_of.get(key)
            return None if row is None else self.hold(row)

    def hold(self, row: int) -> int:
        """Hold a row once more that is held, or idle, already; ValueError for another: its content may be anybody's."""
        with self._lock:
            if row not in self._references and row not in self._idle:
                raise ValueError(f"row {row} is neither held nor idle: it was released, and may be written by another")
            self._idle.pop(row, None)
            self._references[row] += 1
            return row

    def publish(self, row: int, key: bytes, *, parent: bytes = NO_PARENT) -> int:
        """Make a held row findable; returns the row to use from now on, held in its place.

        That is another row if the key was here already: first writer wins, and the given row is released. parent: the
        key that this row is useless without; it is reclaimed after this one.
        """
        with self._lock:
            present = self._row_of.get(key)
            if present is not None:
                self.hold(present)
                self.release(row)
                return present
            self._row_of[key], self._key_of[row] = row, key
            if parent:
                self._parent_of[key] = parent
                self._children[parent] += 1
            return row

    def release(self, row: int) -> None:
        """Give up one reference. Without any left, a published row turns idle and another one unused."""
        with self._lock:
            if row not in self._references:
                raise ValueError(f"row {row} is released more often than it was held")
            self._references[row] -= 1
            if self._references[row] > 0:
                return
            del self._references[row]
            if row in self._key_of:
                self._idle[row] = None
            else:
                self._unused.append(row)

    def _reclaim(self) -> bool:
        """Forget the idle row that was used longest ago and that no other row depends on."""
        row = next((row for row in self._idle if not self._children[self._key_of[row]]), None)
        if row is None:
            return False
        key = self._key_of.pop(row)
        del self._idle[row], self._row_of[key]
        parent = self._parent_of.pop(key, None)
        if parent:
            self._children[parent] -= 1
            if not self._children[parent]:
                del self._children[parent]
        self._unused.append(row)
        return True

    def check_integrity(self) -> None:
        """Every row is in exactly one of the three conditions, and the counts agree; AssertionError if not."""
        with self._lock:
            held, idle, unused = set(self._references), set(self._idle), set(self._unused)
            _require(len(held) + len(idle) + len(self._unused) == self.capacity, "held + idle + unused == capacity")
            _require(held | idle | unused == set(range(self.capacity)), "every row is in one of the three")
            _require(all(count > 0 for count in self._references.values()), "a held row has a reference")
            _require(idle <= set(self._key_of), "an idle row has a key")
            _require({r: k for k, r in self._row_of.items()} == self._key_of, "keys and rows agree")
            children = Counter(parent for key, parent in self._parent_of.items() if key in self._row_of)
            _require(children == +self._children, "children are counted")


def _require(holds: bool, identity: str) -> None:  # noqa: FBT001 - the condition itself
    if not holds:
        raise AssertionError(f"the pool's accounting is wrong: {identity} does not hold")
