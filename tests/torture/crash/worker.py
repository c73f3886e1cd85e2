"""Worker: somebody who uses the service until it is killed, and remembers what was answered."""

import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import httpx

from service_caller import Caller
from service_samples import KINDS, missing, split
from torture.crash.journal import Name

TIMEOUT_SECONDS = 60.0
FETCH_RECORDS = 2_000


@dataclass(slots=True)
class Gate:
    """What the workers of one service and its killer share. storing: set whenever a store is about to be sent."""

    killed: threading.Event = field(default_factory=threading.Event)
    storing: threading.Event = field(default_factory=threading.Event)
    answered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wait_for_answers(self, count: int) -> None:
        """Return once so many answers came, or none for so long that a worker must have failed."""
        for _ in range(count):
            if not self.answered.acquire(timeout=TIMEOUT_SECONDS):
                return


class Worker:
    """One caller. A subclass's `step` makes one request, and notes it before it is sent and when it was answered."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.answers = 0

    def step(self, http: httpx.Client, gate: Gate) -> None:
        raise NotImplementedError

    def work(self, url: str, token: str, gate: Gate) -> None:
        """Go on until the service is killed. Any other end of a connection, and any other answer, is an error."""
        with connect(url, token) as http:
            while True:  # as one that does not know of the kill, so that a request is under way when it comes
                try:
                    self.step(http, gate)
                except httpx.TransportError:
                    if not gate.killed.is_set():
                        raise
                    return
                self.answers += 1
                gate.answered.release()


def connect(url: str, token: str) -> httpx.Client:
    """A client that sends the token; cheap, since a new one is made after each kill."""
    transport = httpx.HTTPTransport(verify=False)
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(transport=transport, base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)


def fetch(http: httpx.Client, names: Iterable[Name], documents: Mapping[bytes, dict]) -> dict[Name, bytes | None]:
    """What the service has under each name; None for a miss, and for all of a layout that is not registered."""
    found: dict[Name, bytes | None] = {}
    by_layout: dict[bytes, list[Name]] = {}
    for name in names:
        by_layout.setdefault(name.layout, []).append(name)
    for layout, mine in by_layout.items():
        for start in range(0, len(mine), FETCH_RECORDS):
            found |= _fetch_some(http, documents[layout], mine[start : start + FETCH_RECORDS])
    return found


def _fetch_some(http: httpx.Client, document: dict, names: list[Name]) -> dict[Name, bytes | None]:
    answer = Caller(http).fetch(document, *[(name.kind, name.key) for name in names])
    if answer.status_code == 409:
        return dict.fromkeys(names)
    assert answer.status_code == 200, answer.text
    records = split(answer.content)
    assert len(records) == len(names)
    return {
        name: None if record == missing(document, KINDS[name.kind], name.key) else record
        for name, record in zip(names, records, strict=True)
    }


def differing(
    http: httpx.Client, names: Iterable[Name], found: Mapping[Name, bytes | None], documents: Mapping[bytes, dict]
) -> list[str]:
    """Where the single GET of a record, or its 404, is not what the fetch of many has found."""
    return [
        f"GET of {name} and fetch differ" for name in names if _get(http, documents[name.layout], name) != found[name]
    ]


def _get(http: httpx.Client, document: dict, name: Name) -> bytes | None:
    answer = http.get(Caller.path(document, name.kind, name.key))
    assert answer.status_code in (200, 404), answer.text
    return answer.content if answer.status_code == 200 else None
