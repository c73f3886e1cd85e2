"""Ways in which a service, or the way to it, can be faulty on purpose: for tests of whoever uses a client.

A fault turns an honest answer into steps: bytes to send, pauses, and hanging up. Pure; testing.py acts on it.
"""

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple

from kvcairn_protocol.messages import PROBLEM_TYPE, Problem


class Answer(NamedTuple):
    """An HTTP answer: head, up to and with the empty line, and body."""

    head: bytes
    body: bytes


class Pause(NamedTuple):
    """Send nothing for a while."""

    seconds: float


class HangUp(NamedTuple):
    """Close the connection."""


Step = bytes | Pause | HangUp
Fault = Callable[[Answer], Iterator[Step]]

FOR_EVER = 3600.0


def answer(status: int, content_type: str, body: bytes, *, extra: str = "") -> Answer:
    """An answer with a Content-Length. extra: further header lines, each with its line end."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}\r\n"
    )
    return Answer(head.encode("ascii"), body)


def problem(status: int, *, extra: str = "") -> Answer:
    """A refusal, or a failure, as the service words it."""
    phrase = HTTPStatus(status).phrase
    text = Problem(type="about:blank", title=phrase, status=status, detail="on purpose").model_dump_json()
    return answer(status, PROBLEM_TYPE, text.encode(), extra=extra)


def honest(given: Answer) -> Iterator[Step]:
    """No fault at all."""
    yield given.head + given.body


def instead(other: Answer) -> Fault:
    """Another answer."""

    def fault(_: Answer) -> Iterator[Step]:
        yield other.head + other.body

    return fault


def late(seconds: float) -> Fault:
    """The honest answer, after a while."""

    def fault(given: Answer) -> Iterator[Step]:
        yield Pause(seconds)
        yield given.head + given.body

    return fault


def silent(given: Answer, *, after_bytes: int = 0) -> Iterator[Step]:
    """The first bytes of the body, then nothing for ever. With none, not even a head."""
    if after_bytes:
        yield given.head + given.body[:after_bytes]
    yield Pause(FOR_EVER)


def cut(after_bytes: int) -> Fault:
    """Hang up in the middle; after_bytes: counted from the answer's first byte, head included."""

    def fault(given: Answer) -> Iterator[Step]:
        yield (given.head + given.body)[:after_bytes]
        yield HangUp()

    return fault


def flip(at: int, *, mask: int = 1) -> Fault:
    """Other bits in one byte of the body."""

    def fault(given: Answer) -> Iterator[Step]:
        spoiled = bytearray(given.body)
        spoiled[at] ^= mask
        yield given.head + spoiled

    return fault


def rewrite(change: Callable[[bytes], bytes]) -> Fault:
    """Another body under the same head, whose Content-Length it may contradict."""

    def fault(given: Answer) -> Iterator[Step]:
        yield given.head + change(given.body)

    return fault


def drip(*, piece_bytes: int, pause_seconds: float) -> Fault:
    """The honest answer in small pieces with a pause after each: never silent, never done."""

    def fault(given: Answer) -> Iterator[Step]:
        whole = given.head + given.body
        for start in range(0, len(whole), piece_bytes):
            yield whole[start : start + piece_bytes]
            yield Pause(pause_seconds)

    return fault


def endless(head: bytes, filler: bytes) -> Fault:
    """`head`, then `filler` again and again, for as long as anybody reads."""

    def fault(_: Answer) -> Iterator[Step]:
        yield head
        while True:
            yield filler

    return fault
