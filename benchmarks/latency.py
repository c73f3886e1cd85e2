"""What another request feels while a whole prefix streams out or in, beside the same request on an idle service.

The other request is what a second inference server asks first: the lookup of a prompt of 8,192 tokens. A process of its
own asks, over one connection, so that nobody's interpreter lock but the service's is measured.
"""

import contextlib
import http.client
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection

from benchmarks.measure import Figure, Work, percentile
from benchmarks.prefixes import Prefix
from benchmarks.store import FreshPrefix, payload_source
from examples.service import running_service
from kvcairn_client.client import Client

BLOCKS, OTHER_BLOCKS = 256, 16
PHASE_SECONDS = 1.2
PAUSE_SECONDS = 0.001
OUT_SECONDS, IN_SECONDS = 0.010, 0.015
MOST_TIMES_IDLE = 8.0


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    source = payload_source(2 if tiny else BLOCKS)
    seconds = 0.05 if tiny else PHASE_SECONDS
    idle, out, into = [], [], []
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "4GiB"))
        client = stack.enter_context(Client(service.url))
        source.store(client)
        probe = stack.enter_context(_probing(service.url, source))
        for number in range(rounds + 1):
            fresh = FreshPrefix(source, number, client)
            idle.append(probe.latencies(lambda: time.sleep(seconds)))
            out.append(probe.latencies(lambda: _read_for(seconds, source, client)))
            into.append(probe.latencies(lambda: fresh.store(client)))  # noqa: B023 - called at once
            fresh.delete(service)
    return [
        *_figures("streams out", out[1:], idle[1:], most_seconds=OUT_SECONDS),
        *_figures("streams in", into[1:], idle[1:], most_seconds=IN_SECONDS),
    ]


def _read_for(seconds: float, prefix: Prefix, client: Client) -> None:
    end = time.monotonic() + seconds
    prefix.read(client)
    while time.monotonic() < end:
        prefix.read(client)


def _figures(while_: str, busy: list[list[float]], idle: list[list[float]], *, most_seconds: float) -> list[Figure]:
    """Medians over the rounds of each round's 99th percentile."""
    ours, calm = (statistics.median(percentile(each, 0.99) for each in rounds) for rounds in (busy, idle))
    middle = statistics.median(value for each in busy for value in each)
    detail = f"lookups of 8,192 tokens; median {1e3 * middle:.2f} ms, {sum(map(len, busy))} samples"
    limit = f"idle p99 {1e3 * calm:.2f} ms"
    work = f"another request's p99 while a prefix {while_}"
    return [
        Figure(work, 1e3 * ours, "ms", detail, limit=limit, at_most=1e3 * most_seconds),
        Figure(f"{work} / idle", ours / calm, "×", detail, limit=limit, at_most=MOST_TIMES_IDLE),
    ]


class _Probe:
    """The process that asks, while something else runs here."""

    def __init__(self, pipe: "Connection[None, list[float]]") -> None:
        self._pipe = pipe

    def latencies(self, work: Work) -> list[float]:
        """Seconds that each lookup took while `work` ran."""
        self._pipe.send(None)
        work()
        self._pipe.send(None)
        return self._pipe.recv()


@contextlib.contextmanager
def _probing(url: str, prefix: Prefix) -> Iterator[_Probe]:
    keys = [key.hex() for key in prefix.keys[:OTHER_BLOCKS]]
    body = json.dumps({"layout": prefix.layout.fingerprint.hex(), "block_keys": keys})
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_ask, args=(theirs, url.removeprefix("http://"), body), daemon=True)
    process.start()
    theirs.close()
    try:
        yield _Probe(ours)
    finally:
        ours.close()
        process.join(timeout=10)


def _ask(pipe: "Connection[list[float], None]", authority: str, body: str) -> None:
    connection = http.client.HTTPConnection(authority)
    _look_up(connection, body)
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            taken = []
            while not pipe.poll():
                start = time.perf_counter()
                _look_up(connection, body)
                taken.append(time.perf_counter() - start)
                time.sleep(PAUSE_SECONDS)
            pipe.recv()
            pipe.send(taken)


def _look_up(connection: http.client.HTTPConnection, body: str) -> None:
    connection.request("POST", "/v1/prefixes:lookup", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
