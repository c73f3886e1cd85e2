"""One tenant's flood: a process that asks as fast as it can, by several connections at once, for as long as it is told.

What is refused (429) is counted and asked again a moment later, as impatient clients do.
"""

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.measure import Work
from kvcairn_protocol.codec import Encoded
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.record import encode_record

CONNECTIONS = 8
REFUSED_PAUSE_SECONDS = 0.005
STORED_RECORDS = 4
KINDS = ("small lookups", "huge lookups", "fetches", "stores")
JSON_TYPE, RECORDS_TYPE = "application/json", "application/vnd.kvcairn.records"


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a flood asks, and for what: keys are of the stored blocks; huge: how many keys a huge lookup has."""

    authority: str
    token: str
    layout: Layout
    keys: Sequence[bytes]
    huge: int


Request = tuple[str, Callable[[], bytes], str]
"""A path, what makes a body, and the body's type."""


def requests(target: Target) -> dict[str, Request]:
    """What each kind of flood asks."""
    layout = target.layout.fingerprint.hex()
    many = list(itertools.islice(itertools.cycle(target.keys), target.huge))
    records = [{"kind": "history", "key": key.hex()} for key in target.keys]
    payload = np.random.default_rng(0).bytes(target.layout.payload_bytes(Kind.HISTORY))
    fetch = json.dumps({"layout": layout, "records": records}).encode()
    small, huge = _lookup(layout, target.keys[:16]), _lookup(layout, many)
    return {
        "small lookups": ("/v1/prefixes:lookup", lambda: small, JSON_TYPE),
        "huge lookups": ("/v1/prefixes:lookup", lambda: huge, JSON_TYPE),
        "fetches": ("/v1/records:fetch", lambda: fetch, JSON_TYPE),
        "stores": ("/v1/records:store", lambda: _fresh(target.layout, payload), RECORDS_TYPE),
    }


def _lookup(layout: str, keys: Sequence[bytes]) -> bytes:
    return json.dumps({"layout": layout, "block_keys": [key.hex() for key in keys]}).encode()


def _fresh(layout: Layout, payload: bytes) -> bytes:
    """A body of first blocks under keys that nobody has seen."""
    parts: list[bytes] = []
    for _ in range(STORED_RECORDS):
        header, stored = encode_record(
            layout, Kind.HISTORY, key=os.urandom(32), position=layout.block_tokens, parent=bytes(16),
            payload=Encoded(0, payload, len(payload)),
        )  # fmt: skip
        parts += [header, bytes(stored)]
    return b"".join(parts)


class Flood:
    """The process, which floods while something else runs here."""

    def __init__(self, pipe: "Connection[str, tuple[int, int]]") -> None:
        self._pipe = pipe

    def during(self, work: Work, kind: str) -> tuple[int, int]:
        """Flood by `kind` while `work` runs; how many requests were answered, and how many refused."""
        self._pipe.send(kind)
        self._pipe.recv()
        work()
        self._pipe.send("")
        return self._pipe.recv()


@contextlib.contextmanager
def flooding(target: Target) -> Iterator[Flood]:
    """A process of its own, so that nobody's interpreter lock but its own is in its way."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, target), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Flood(ours)
    finally:
        ours.close()
        process.join(timeout=30)


def _serve(pipe: "Connection[tuple[int, int], str]", target: Target) -> None:
    asked = requests(target)
    with contextlib.suppress(EOFError):
        while True:
            request, stop, counts = asked[pipe.recv()], threading.Event(), [(0, 0)] * CONNECTIONS
            threads = [
                threading.Thread(target=_ask, args=(target, request, stop, counts, number))
                for number in range(CONNECTIONS)
            ]
            for thread in threads:
                thread.start()
            pipe.send((0, 0))
            pipe.recv()
            stop.set()
            for thread in threads:
                thread.join()
            pipe.send((sum(answered for answered, _ in counts), sum(refused for _, refused in counts)))


def _ask(target: Target, request: Request, stop: threading.Event, counts: list[tuple[int, int]], number: int) -> None:
    path, body, content_type = request
    connection, nowhere = http.client.HTTPConnection(target.authority), bytearray(1 << 20)
    headers = {"Content-Type": content_type, "Authorization": f"Bearer {target.token}"}
    answered = refused = 0
    while not stop.is_set():
        connection.request("POST", path, body(), headers)
        response = connection.getresponse()
        while response.readinto(nowhere):
            pass
        if response.status == 429:
            refused += 1
            time.sleep(REFUSED_PAUSE_SECONDS)
            continue
        assert response.status == 200, response.status
        answered += 1
    connection.close()
    counts[number] = answered, refused
