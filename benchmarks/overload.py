"""What one tenant's flood does to another: its p99 beside its own p99 on an idle service, in the same minutes.

The victim asks what a second inference server asks first, the lookup of a prompt of 8,192 tokens, over one connection
from a process of its own. The flood comes from another process by eight connections. On a machine with few cores both
also take the processor from the service; that is in the figures.
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

import httpx

from benchmarks.floods import CONNECTIONS, KINDS, Flood, Target, flooding
from benchmarks.measure import Figure, Work, percentile
from benchmarks.prefixes import Prefix
from examples.service import Running, running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS, ASKED_BLOCKS = 32, 16
HUGE_KEYS = 16_384
PHASE_SECONDS = 2.0
PAUSE_SECONDS = 0.001
MOST_TIMES_IDLE = 3.0
ADMIN = "benchmark-admin-token"


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    """Each round: an idle phase, then each kind of flood with an idle phase behind it."""
    seconds, env = (0.05 if tiny else PHASE_SECONDS), {"KVCAIRN_ADMIN_TOKEN": ADMIN}
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    idle: list[list[float]] = []
    busy: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    counts = dict.fromkeys(KINDS, (0, 0))
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "2GiB", env=env))
        targets = [_tenant(service, name, prefix, huge=64 if tiny else HUGE_KEYS) for name in ("victim", "flood")]
        victim, flood = stack.enter_context(probing(targets[0])), stack.enter_context(flooding(targets[1]))
        for _ in range(rounds + 1):
            for kind in KINDS:
                idle.append(victim.latencies(lambda: time.sleep(seconds)))
                latencies, counts[kind] = _flooded(victim, flood, kind, seconds)
                busy[kind].append(latencies)
    calm = idle[len(KINDS) :]
    return [_figure(kind, busy[kind][1:], calm, counts[kind]) for kind in KINDS]


def _flooded(victim: "Victim", flood: Flood, kind: str, seconds: float) -> tuple[list[float], tuple[int, int]]:
    found: list[float] = []
    counted = flood.during(lambda: found.extend(victim.latencies(lambda: time.sleep(seconds))), kind)
    return found, counted


def _tenant(service: Running, name: str, prefix: Prefix, *, huge: int) -> Target:
    """Make a tenant that has the prefix stored."""
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {ADMIN}"}) as admin:
        admin.put(f"/v1/tenants/{name}", json={}).raise_for_status()
        token = admin.post(f"/v1/tenants/{name}/tokens").json()["token"]
    with Client(service.url, token=token) as client:
        prefix.store(client)
    return Target(service.url.removeprefix("http://"), token, prefix.layout, prefix.keys, huge)


def _figure(kind: str, busy: list[list[float]], idle: list[list[float]], counted: tuple[int, int]) -> Figure:
    """Medians over the rounds of each phase's 99th percentile."""
    ours, calm = (statistics.median(percentile(each, 0.99) for each in rounds) for rounds in (busy, idle))
    middle = statistics.median(value for each in busy for value in each)
    answered, refused = counted
    detail = (
        f"p99 {1e3 * ours:.2f} ms, median {1e3 * middle:.2f} ms, {sum(map(len, busy))} samples; "
        f"{CONNECTIONS} connections, {answered} answered and {refused} refused in the last round"
    )
    work = f"a tenant's p99 under another's flood of {kind} / idle"
    return Figure(work, ours / calm, "×", detail, limit=f"idle p99 {1e3 * calm:.2f} ms", at_most=MOST_TIMES_IDLE)


class Victim:
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
def probing(target: Target) -> Iterator[Victim]:
    """The victim, ready."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_ask, args=(theirs, target), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Victim(ours)
    finally:
        ours.close()
        process.join(timeout=10)


def _ask(pipe: "Connection[list[float], None]", target: Target) -> None:
    connection = http.client.HTTPConnection(target.authority)
    keys = [key.hex() for key in target.keys[:ASKED_BLOCKS]]
    body = json.dumps({"layout": target.layout.fingerprint.hex(), "block_keys": keys})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {target.token}"}
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            taken: list[float] = []
            while not pipe.poll() or not taken:
                start = time.perf_counter()
                connection.request("POST", "/v1/prefixes:lookup", body, headers)
                response = connection.getresponse()
                answer = response.read()
                taken.append(time.perf_counter() - start)
                assert response.status == 200, answer
                time.sleep(PAUSE_SECONDS)
            pipe.recv()
            pipe.send(taken)
