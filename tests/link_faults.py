"""What can happen to the bytes of one direction of a connection: pure, drawn from a seed; faulty_link.py acts on it.

A fault begins at an offset of the stream, whatever the pieces in which the stream arrives. `Pause` and `HangUp` are
those of the client's own faults, which spoil a fake service's answers; these spoil a real one's bytes, both ways.
"""

import random
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from kvcairn_client.faults import FOR_EVER, HangUp, Pause, Step


class Way(Enum):
    """A direction."""

    UP = "to the service"
    DOWN = "to the client"


class Reset(NamedTuple):
    """Close the connection with a RST, to both sides."""


class HalfClose(NamedTuple):
    """End this direction for good; the other goes on."""


LinkStep = Step | Reset | HalfClose


class LinkFault(NamedTuple):
    """kind: a key of KINDS. at_byte: where in the stream it begins. amount: bytes of it, where the kind has any."""

    kind: str
    way: Way
    at_byte: int
    amount: int


Spoil = Callable[[bytes, LinkFault], Iterator[LinkStep]]


def _flip(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield bytes([rest[0] ^ 1 << fault.amount % 8]) + rest[1:]


def _drop(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield rest[fault.amount :]


def _duplicate(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield rest[: fault.amount] + rest


def _delay(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield Pause(fault.amount / 5000)
    yield rest


def _drip(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    for at in range(len(rest)):
        yield rest[at : at + 1]
        yield Pause(0.02)


def _stall(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield Pause(FOR_EVER)


def _cut(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield HangUp()


def _reset(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield Reset()


def _half_close(rest: bytes, fault: LinkFault) -> Iterator[LinkStep]:
    yield HalfClose()


ONCE: dict[str, Spoil] = {"flip": _flip, "drop": _drop, "duplicate": _duplicate, "delay": _delay}
"""Gone behind the piece in which they begin."""

LASTING: dict[str, Spoil] = {"drip": _drip, "stall": _stall, "cut": _cut, "reset": _reset, "half close": _half_close}
KINDS = {**ONCE, **LASTING}

MOST_AMOUNT = 2000


def steps(fault: LinkFault, at: int, piece: bytes) -> Iterator[LinkStep]:
    """What becomes of a piece that begins at this offset of the fault's stream."""
    start = max(0, fault.at_byte - at)
    if start:
        yield piece[:start]
    if start < len(piece):
        is_over = at > fault.at_byte and fault.kind in ONCE
        yield from [piece] if is_over else KINDS[fault.kind](piece[start:], fault)


def drawn(seed: int, *, reach_bytes: int) -> Iterator[LinkFault]:
    """A fault for each connection in turn, for ever. Offsets are spread evenly over sizes, so heads get many."""
    rng = random.Random(seed)
    while True:
        kind, way = rng.choice(sorted(KINDS)), rng.choice(list(Way))
        at_byte = int(2 ** rng.uniform(0, reach_bytes.bit_length())) - 1
        yield LinkFault(kind, way, at_byte, rng.randint(1, MOST_AMOUNT))
