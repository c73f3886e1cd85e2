"""A service that is stopped (SIGSTOP: a frozen node, a swapping host, a debugger) keeps its connections and answers
nothing. The engine goes on within its budgets, and uses the service again once that goes on, without being told."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.failopen import FailOpen
from serving import ServiceProcess, running_service
from sockets import eventually

LAYOUT = samples.layout("org/stopped@1", row_bytes=64 << 10)
RECORDS = samples.prompt(LAYOUT, 8, states=[7])
BUDGETS = samples.QUICK
PROMPT_SECONDS = BUDGETS.control_seconds + BUDGETS.fetch_seconds + BUDGETS.store_seconds
LOADED_MACHINE_SECONDS = 5.0


@dataclass(slots=True)
class Engine:
    """Looks up and fetches one prompt over and over. slowest_seconds: of all prompts; hits: prompts found whole."""

    service: FailOpen
    hits: int = 0
    misses: int = 0
    slowest_seconds: float = 0.0
    is_done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.is_done.is_set():
            started = time.monotonic()
            is_hit = self._prompt()
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
            self.hits, self.misses = self.hits + is_hit, self.misses + (not is_hit)
            time.sleep(0.01)

    def _prompt(self) -> bool:
        found = self.service.lookup(LAYOUT, samples.keys(8))
        wishes, buffers = samples.wanted(LAYOUT, RECORDS)
        loaded = self.service.fetch(LAYOUT, wishes).loaded if found.hit_tokens else [False] * len(RECORDS)
        for record, buffer, is_loaded in zip(RECORDS, buffers, loaded, strict=True):
            assert not is_loaded or bytes(buffer) == record.payload, "a wrong byte reached the engine"
        return all(loaded)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(tmp_path_factory.mktemp("stopped") / "data") as running:
        yield running


@pytest.mark.parametrize("stop_seconds", [1.5, pytest.param(30.0, marks=pytest.mark.torture)])
def test_an_engine_goes_on_beside_a_stopped_service_and_comes_back_by_itself(
    process: ServiceProcess, stop_seconds: float
) -> None:
    with Client(process.url, budgets=BUDGETS) as client:
        client.store(LAYOUT, RECORDS)
        engine = Engine(FailOpen(client))
        thread = threading.Thread(target=engine.run)
        thread.start()
        try:
            assert eventually(lambda: engine.hits > 2)
            misses = _stop_for(process, stop_seconds, engine)
            before = engine.hits
            assert _comes(lambda: engine.hits > before)
        finally:
            engine.is_done.set()
            thread.join()
    assert misses > 0, "the service was stopped, and nobody noticed: nothing was tested"
    assert engine.slowest_seconds < PROMPT_SECONDS + LOADED_MACHINE_SECONDS
    assert engine.service.faults < misses + engine.hits


def _stop_for(process: ServiceProcess, seconds: float, engine: Engine) -> int:
    """How many prompts the engine went through without the service."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        before = engine.misses
        until = time.monotonic() + seconds
        while time.monotonic() < until or engine.misses == before:
            time.sleep(0.05)
        return engine.misses - before
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _comes(condition) -> bool:  # type: ignore[no-untyped-def]
    """As `eventually`, for longer than the breaker's longest pause."""
    return any(eventually(condition) for _ in range(6))
