"""A mixed load for as long as one likes, with kills and restarts: nothing grows, and the statistics are what clients
counted. `make torture` takes minutes (`TEST_ARGS='--soak-seconds 14400'` for four hours).
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from serving import ServiceProcess, running_service
from sockets import eventually
from torture.soak.clients import Client, Engine, Landlord, Quitter
from torture.soak.flat import LEAST_WINDOWS, growth
from torture.soak.ledger import Ledger, total
from torture.soak.process import Held, held
from torture.spawner import Spawner, spawning

ADMIN = "soak-admin"
ENV = {"KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_SWEEP_SECONDS": "1", "KVCAIRN_LOG_LEVEL": "warning"}
FLAGS = ("--capacity", "8MiB")
LIVES, DOUBLINGS = 3, 3
SHORT_ACTS, LONG_ACTS = 4, 8
"""Of each caller in a window."""


Running = Callable[[Path], AbstractContextManager[ServiceProcess]]
"""Starts a service on a directory, and ends it."""


def measured(directory: Path) -> AbstractContextManager[ServiceProcess]:
    """A process of its own from the start, so that all it holds is its own."""
    return running_service(directory, *FLAGS, env=ENV)


def forked(spawner: Spawner) -> Running:
    """Quicker to start, for where nothing is measured."""

    @contextmanager
    def running(directory: Path) -> Iterator[ServiceProcess]:
        service = spawner.start("--data", str(directory), "--port", "0", *FLAGS)
        service.wait_until_listening()
        yield service
        service.kill()

    return running


class Soak:
    """One data directory, and the callers that live through all of its processes."""

    def __init__(self, directory: Path, seed: int, *, acts: int, running: Running) -> None:
        self.directory, self.acts, self._running = directory, acts, running
        self.engines = {f"engine-{number}": Engine(f"{seed}-{number}", block_bytes=8_000) for number in range(3)}
        self.engines["quitter"] = Quitter(f"{seed}-quitter", block_bytes=60_000)
        self.landlord = Landlord(str(seed))
        self.tokens: dict[str, str] = {}

    @contextmanager
    def process(self) -> Iterator["Life"]:
        """A new process on the directory, and everybody connected to it."""
        with self._running(self.directory) as service:
            with closing(Life(self, service)) as life:
                life.start()
                yield life
            assert "Traceback" not in service.log()


class Life:
    """What one process lives through. samples: what it held at the end of each window."""

    def __init__(self, soak: Soak, service: ServiceProcess) -> None:
        self.soak, self.service, self.ledger = soak, service, Ledger()
        self.samples: list[Held] = []
        self.admin = Client(service.url, ADMIN, self.ledger)
        self.clients: dict[str, Client] = {}
        self.at_start: dict[str, dict] = {}

    def start(self) -> None:
        for name, engine in self.soak.engines.items():
            self.clients[name] = self._client(name)
            engine.start(self.clients[name])
        self.at_start = self._stats()

    def _client(self, name: str) -> Client:
        if name not in self.soak.tokens:
            assert self.admin.ask("PUT", f"/v1/tenants/{name}", json={}).status_code == 200
            self.soak.tokens[name] = self.admin.ask("POST", f"/v1/tenants/{name}/tokens").json()["token"]
        return Client(self.service.url, self.soak.tokens[name], self.ledger)

    def window(self) -> None:
        """Everybody acts a number of times at once; then all is quiet, and compared."""
        with ThreadPoolExecutor(len(self.clients) + 1) as pool:
            acting = [pool.submit(self._act, engine, self.clients[name]) for name, engine in self.soak.engines.items()]
            acting.append(pool.submit(self._act, self.soak.landlord, self.admin))
            for each in acting:
                each.result()
        assert eventually(lambda: not self.ledger.faults(self._metrics())), self.ledger.faults(self._metrics())
        self.samples.append(held(self.service.pid, self.soak.directory))

    def _act(self, caller: Engine | Landlord, client: Client) -> None:
        for _ in range(self.soak.acts):
            caller.act(client)

    def check_statistics(self) -> None:
        """What the service says of each tenant is what its callers were told."""
        stats, metrics = self._stats(), self._metrics()
        for name, engine in self.soak.engines.items():
            mine, told = stats[name], engine.told
            assert [mine[each] for each in ("lookups", "asked_tokens", "hit_tokens")] == [
                told.lookups, told.asked_tokens, told.hit_tokens,
            ]  # fmt: skip
            for metric, value in (("lookups", told.lookups), ("asked_tokens", told.asked_tokens)):
                assert total(metrics, f"kvcairn_{metric}_total", tenant=name) == value
            evicted = sum(kind["evicted_records"] for kind in mine["kinds"])
            assert total(metrics, "kvcairn_evicted_records_total", tenant=name) == evicted
            assert total(metrics, "kvcairn_records", tenant=name) == mine["records"]
            if not isinstance(engine, Quitter):  # whose broken-off uploads leave what was whole
                before = self.at_start[name]["records"]
                assert mine["records"] == before + told.stored - told.deleted - evicted, (name, told)
            assert mine["records"] == engine.present(self.clients[name])
        assert set(stats) == {"default", *self.soak.engines}, "a deleted tenant is still counted"

    def live(self, seconds: float) -> None:
        """Windows for so long, and as many again while something grows: a heap comes to rest, a leak never."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.samples) < LEAST_WINDOWS:
            self.window()
        for _ in range(DOUBLINGS):
            if self.grown():
                for _ in range(len(self.samples)):
                    self.window()
        assert not self.grown(), f"{self.grown()}; every window: {self.samples}"

    def grown(self) -> dict[str, str]:
        """What grows, and how."""
        by_field = zip(Held._fields, zip(*self.samples, strict=True), strict=True)
        return {field: fault for field, samples in by_field if (fault := growth(samples))}

    def kill_under_load(self) -> None:
        """End the process while everybody acts; what they meet then is theirs."""
        with ThreadPoolExecutor(len(self.clients)) as pool:
            acting = [pool.submit(self._act, engine, self.clients[name]) for name, engine in self.soak.engines.items()]
            time.sleep(0.2)
            self.service.kill()
            for each in acting:
                with suppress(httpx.TransportError, OSError):
                    each.result()

    def close(self) -> None:
        for client in (self.admin, *self.clients.values()):
            client.close()

    def _stats(self) -> dict[str, dict]:
        return {each["tenant"]: each for each in self.admin.ask("GET", "/v1/stats/all").json()["tenants"]}

    def _metrics(self) -> str:
        return self.admin.ask("GET", "/metrics").text


def test_statistics_are_what_clients_counted_before_and_after_a_kill(tmp_path, torture_seed):
    with spawning(tmp_path, ENV) as spawner:
        soak = Soak(tmp_path / "data", torture_seed, acts=SHORT_ACTS, running=forked(spawner))
        for _ in range(2):
            with soak.process() as life:
                for _ in range(2):
                    life.window()
                life.check_statistics()
                life.kill_under_load()


@pytest.mark.torture
def test_nothing_grows_and_statistics_stay_true_for_as_long_as_it_runs(tmp_path, torture_seed, request):
    soak, rng = Soak(tmp_path / "data", torture_seed, acts=LONG_ACTS, running=measured), random.Random(torture_seed)
    until = time.monotonic() + request.config.getoption("--soak-seconds")
    life_seconds = request.config.getoption("--soak-seconds") / LIVES
    while time.monotonic() < until:
        with soak.process() as life:
            life.live(life_seconds)
            life.check_statistics()
            if rng.random() < 0.5:
                life.kill_under_load()
