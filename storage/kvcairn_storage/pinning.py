"""Pinning: what a prefix store offers for pins. Decided under the store's lock; nothing here waits or does I/O.

Pins are kept on disk by whoever made them: this remembers those that it was given, and no more.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvcairn_protocol.layout import Kind
from kvcairn_storage.pins import PIN_SHARE, Obstacle, Pin, PinnedRecord
from kvcairn_storage.shelf import Run
from kvcairn_storage.slot import Phase, Slot
from kvcairn_storage.space import Space
from kvcairn_storage.store import RecordKey


class Pinned(NamedTuple):
    """What became of a wish to pin a prefix.

    pin: what is pinned, or would have been; None where nothing of the prefix is there. replaced: the tenant's pin of
    the same id until then. obstacle: why nothing has changed; None where the pin stands.
    """

    run: Run
    pin: Pin | None
    replaced: Pin | None = None
    obstacle: Obstacle | None = None


class Pinning:
    """The pins of one prefix store. Thread-safe."""

    def __init__(
        self,
        space: Space,
        lock: threading.Lock,
        clock: Callable[[], float],
        note_use: Callable[[Iterable[Slot]], None],
    ) -> None:
        self._space = space
        self._lock = lock
        self._clock = clock
        self._note_use = note_use

    @property
    def limit_bytes(self) -> int:
        """What all pins together may take."""
        return pin_limit_bytes(self._space.capacity_bytes)

    def pinned_bytes(self, tenant: str | None = None) -> int:
        """What pins take, of one tenant or all, each record once; room kept for records that were lost included."""
        with self._lock:
            return self._space.pins.total_bytes if tenant is None else self._space.pins.tenant_bytes(tenant)

    def find(self, tenant: str, pin_id: str) -> Pin | None:
        with self._lock:
            return self._space.pins.find(tenant, pin_id)

    def pin(
        self, *, tenant: str, layout: bytes, pin_id: str, keys: Sequence[bytes], block_tokens: int, limit_bytes: int
    ) -> Pinned:
        """Pin the longest run from the first key on, and the states of it that a restore would use.

        In place of the tenant's pin of that id; all of it or nothing. limit_bytes: what the tenant's pins may take.
        """
        with self._lock:
            shelf = self._space.shelf(tenant, layout)
            found = shelf.longest_run(keys, block_tokens=block_tokens) if shelf else Run(0, [])
            run = Run(found.history_blocks, useful_states(found, block_tokens=block_tokens))
            if not run.history_blocks:
                return Pinned(run, None, obstacle=Obstacle.ABSENT)
            names = [(Kind.HISTORY, key) for key in keys[: run.history_blocks]]
            names += [(Kind.STATE, keys[position // block_tokens - 1]) for position in run.state_tokens]
            pin = Pin(tenant, layout, pin_id, tuple(self._weighed(tenant, layout, *name) for name in names))
            outcome = self._space.pins.try_put(pin, tenant_limit_bytes=limit_bytes, limit_bytes=self.limit_bytes)
            if isinstance(outcome, Obstacle):
                return Pinned(run, pin, obstacle=outcome)
            self._apply(pin, outcome)
            return Pinned(run, pin, replaced=outcome)

    def put_back(self, pin: Pin) -> None:
        """Make a pin what it was before, whatever the limits say now."""
        with self._lock:
            self._apply(pin, self._space.pins.put(pin))

    def unpin(self, tenant: str, pin_id: str) -> bool:
        """Let go of a pin's records; they count as used now. Whether there was one of that id."""
        with self._lock:
            old = self._space.pins.remove(tenant, pin_id)
            self._apply(old)
        return old is not None

    def present_records(self, pin: Pin) -> int:
        """How many of a pin's records are there and pinned right now."""
        with self._lock:
            slots = [self._space.find(key) for key in pin.record_keys()]
            return sum(slot is not None and slot.pinned and slot.phase is Phase.PRESENT for slot in slots)

    def _weighed(self, tenant: str, layout: bytes, kind: Kind, key: bytes) -> PinnedRecord:
        slot = self._space.find(RecordKey(tenant, layout, kind, key))
        if slot is None:
            raise AssertionError(f"the {kind.label} record {key.hex()} was in the run, and is not there")
        return PinnedRecord(kind, key, slot.charged_bytes)

    def _apply(self, *pins: Pin | None) -> None:
        """Let the accounting see which records of these pins, added or gone, are pinned now."""
        keys = dict.fromkeys(key for pin in pins if pin is not None for key in pin.record_keys())
        self._note_use(self._space.repin(keys, now=self._clock()))


def pin_limit_bytes(capacity_bytes: int) -> int:
    """What all pins together may take of a capacity."""
    return int(capacity_bytes * PIN_SHARE)


def useful_states(run: Run, *, block_tokens: int) -> list[int]:
    """The states of a run that restores of prompts which begin with it would use, deepest first: one or two of them.

    Whatever goes on behind the run starts from its deepest state. A prompt that ends where the run does has to compute
    one token at least, and so cannot start from a state at the very end: it starts from the one before that.
    """
    at_the_end = run.state_tokens[:1] == [run.history_blocks * block_tokens]
    return run.state_tokens[: 2 if at_the_end else 1]
