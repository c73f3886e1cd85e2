"""Four processes that fetch the whole prefix at once: what the service keeps in private memory, and the rate of all."""

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.measure import Figure
from benchmarks.memory import peak_private_bytes
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS = 256
CLIENTS = 4
SERVICE_BYTES = 300e6
READY_SECONDS = 60.0


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    seconds = []
    with running_service("--capacity", "2GiB") as service:
        with Client(service.url) as client:
            prefix.store(client)
        with _fetchers(service.url, prefix.blocks) as pipes, peak_private_bytes(service.pid) as peak:
            for _ in range(rounds + 1):
                start = time.perf_counter()
                _all_fetch(pipes)
                seconds.append(time.perf_counter() - start)
    taken = statistics.median(seconds[1:])
    rate = CLIENTS * prefix.payload_bytes / 1e9 / taken
    detail = f"{CLIENTS} × {prefix.payload_bytes / 1e6:,.1f} MB in {taken:.3f} s ({rate:.2f} GB/s); the map not counted"
    return [
        Figure("private memory of the service while four clients fetch", peak[0] / 1e6, "MB", detail,
               at_most=SERVICE_BYTES / 1e6)
    ]  # fmt: skip


def _all_fetch(pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.send(None)
    for pipe in pipes:
        pipe.recv()


@contextlib.contextmanager
def _fetchers(url: str, blocks: int) -> Iterator[list[Connection]]:
    """Processes that fetch once whenever they are sent something, and answer when they have it."""
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(CLIENTS)]
    processes = [spawn.Process(target=_fetch, args=(theirs, url, blocks), daemon=True) for _, theirs in pairs]
    for process, (_, theirs) in zip(processes, pairs, strict=True):
        process.start()
        theirs.close()
    try:
        yield [ours for ours, _ in pairs]
    finally:
        for ours, _ in pairs:
            ours.close()
        for process in processes:
            process.join(timeout=READY_SECONDS)


def _fetch(pipe: Connection, url: str, blocks: int) -> None:
    prefix = Prefix(flash("benchmark"), blocks)
    with contextlib.suppress(EOFError), Client(url, budgets=Budgets(fetch_seconds=READY_SECONDS)) as client:
        while True:
            pipe.recv()
            prefix.read(client)
            pipe.send(None)
