"""Siege: one data directory whose service is killed again and again, and everything is asked for after each kill."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import httpx

from kvcairn_storage.lmdb import LmdbReader
from torture.crash.crowd import Crowd
from torture.crash.journal import Fate, charged_bytes
from torture.crash.keeper import Keeper
from torture.crash.landlord import Landlord
from torture.crash.worker import Gate, connect
from torture.spawner import Spawned, Spawner

ADMIN = "siege-admin"
LOAD_ANSWERS = (6, 40)
"""A kill comes after so many answers, whatever the machine's speed; each worker gets some in the long run."""

COMMIT_SECONDS = 0.03
"""A store is received, decided, written and synced within this time, so that some kills meet each step."""


class Kill(Enum):
    """When a kill comes, and how often it is drawn."""

    IN_A_STORE = 6
    IN_A_START = 3
    AFTER_A_START = 1


@dataclass(slots=True, kw_only=True)
class Siege:
    """keepers, crowds: by the names of their tenants, made before the first kill. quotas: of tenants, in bytes.

    before_start, after_kill: called around each process, for who does more to its directory than kill.
    """

    spawner: Spawner
    directory: Path
    seed: int
    capacity: str
    keepers: dict[str, Keeper]
    crowds: dict[str, Crowd]
    landlord: Landlord
    quotas: dict[str, int] = field(default_factory=dict)
    before_start: Callable[[], object] = bool
    after_kill: Callable[[], object] = bool
    kills: int = 0
    start_seconds: list[float] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    def open(self) -> None:
        """Let a first service make the tenants; it is killed as well."""
        service = self._start()
        with connect(service.url, ADMIN) as http:
            for name in (*self.keepers, *self.crowds):
                settings = {"quota_bytes": self.quotas.get(name)}
                assert http.put(f"/v1/tenants/{name}", json=settings).status_code == 200
                self.tokens[name] = http.post(f"/v1/tenants/{name}/tokens").json()["token"]
        self._kill(service)

    def go_on(self, *, kills: int) -> None:
        """Kill so many times more; AssertionError, with what it takes to run it again, at the first fault."""
        until = self.kills + kills
        while self.kills < until:
            rng = random.Random(f"{self.seed} {self.kills}")
            kill = rng.choices(list(Kill), [each.value for each in Kill])[0]
            try:
                self._endure(kill, rng)
            except Exception as error:
                place = f"seed {self.seed}, kill {self.kills} ({kill.name}), data in {self.directory}"
                raise AssertionError(f"{place}: {error}") from error

    def look(self) -> None:
        """Start once more, ask for everything, end in order, and check the directory."""
        service = self._start()
        self._verify(service)
        assert service.terminate() == 0
        assert_sound(self.directory)

    def _endure(self, kill: Kill, rng: random.Random) -> None:
        if kill is Kill.IN_A_START:
            service = self._spawn()
            time.sleep(rng.uniform(0, 1.5 * statistics.median(self.start_seconds[-9:])))
        else:
            service = self._start()
            self._verify(service)
            if kill is Kill.IN_A_STORE:
                self._kill_under_load(service, rng)
                return
        self._kill(service)

    def _kill_under_load(self, service: Spawned, rng: random.Random) -> None:
        gate = Gate()
        workers = [(worker, self.tokens[name]) for name, worker in (*self.keepers.items(), *self.crowds.items())]
        workers.append((self.landlord, ADMIN))
        with ThreadPoolExecutor(len(workers)) as pool:
            under_way = [pool.submit(worker.work, service.url, token, gate) for worker, token in workers]
            try:
                gate.wait_for_answers(rng.randint(*LOAD_ANSWERS))
                gate.storing.clear()
                gate.storing.wait(timeout=10)
                time.sleep(rng.uniform(0, COMMIT_SECONDS))
            finally:
                gate.killed.set()
                self._kill(service)
            for each in under_way:
                each.result()

    def _kill(self, service: Spawned) -> None:
        service.kill()
        self.kills += 1
        self.after_kill()
        assert "Traceback" not in service.log(), service.log()
        assert_sound(self.directory)

    def _spawn(self) -> Spawned:
        self.before_start()
        return self.spawner.start(*self.flags())

    def _start(self) -> Spawned:
        started = time.monotonic()
        service = self._spawn()
        service.wait_until_listening()
        self.start_seconds.append(time.monotonic() - started)
        return service

    def _verify(self, service: Spawned) -> None:
        faults: list[str] = []
        for name, worker in (*self.keepers.items(), *self.crowds.items()):
            with connect(service.url, self.tokens[name]) as http:
                faults += [f"{name}: {fault}" for fault in worker.faults(http)]
        with connect(service.url, ADMIN) as http:
            faults += self.landlord.faults(http)
            faults += self._miscounted(http)
        assert not faults, "\n".join(faults)

    def _miscounted(self, http: httpx.Client) -> list[str]:
        """Where statistics, capacity or the tables of the directory differ from what was just found."""
        stats = http.get("/v1/stats/all").json()
        by_name = {each["tenant"]: each for each in stats["tenants"]}
        tenants, expected = set(by_name), {"default", *self.keepers, *self.crowds, *self.landlord.houses}
        faults = [] if tenants == expected else [f"the tenants are {tenants}, expected {expected}"]
        for name, worker in (*self.keepers.items(), *self.crowds.items()):
            faults += self._differs(name, by_name[name], _found_records(worker))
        if sum(each["charged_bytes"] for each in by_name.values()) != stats["charged_bytes"]:
            faults.append("records of nobody are charged")
        if stats["charged_bytes"] > stats["capacity_bytes"]:
            faults.append(f"{stats['charged_bytes']} bytes are charged, beyond the capacity")
        tokens = len(self.tokens) + sum(
            len(each.tokens) + each.unknown_tokens for each in self.landlord.houses.values()
        )
        kept = {"records": sum(each["records"] for each in by_name.values()), "tenants": len(tenants), "tokens": tokens}
        found = kept_in(self.directory)
        return [*faults, *([f"the directory holds {found}, expected {kept}"] if found != kept else [])]

    def _differs(self, name: str, stats: dict, records: Sequence[bytes]) -> list[str]:
        figures = {
            "records": len(records),
            "stored_bytes": sum(map(len, records)),
            "charged_bytes": sum(map(charged_bytes, records)),
        }
        faults = [
            f"{name}: {field} is {stats[field]}, found {right}"
            for field, right in figures.items()
            if stats[field] != right
        ]
        quota = self.quotas.get(name)
        over = quota is not None and figures["charged_bytes"] > quota
        return [*faults, *([f"{name} takes more than its quota of {quota} bytes"] if over else [])]

    def flags(self) -> list[str]:
        return ["--data", str(self.directory), "--capacity", self.capacity, "--port", "0"]


def _found_records(worker: Keeper | Crowd) -> list[bytes]:
    """What its last look has found."""
    return [known.record for known in worker.journal.known.values() if known.fate is not Fate.GONE]


def assert_sound(directory: Path) -> None:
    """Read every record of a stopped service's directory and compare it with its entry and its checksum."""
    if (directory / "data.mdb").exists():
        with contextlib.closing(LmdbReader(directory)) as reader:
            faults = reader.check_integrity()
        assert not faults, faults


def kept_in(directory: Path) -> dict[str, int]:
    """How many rows there are, beside the running service."""
    with contextlib.closing(LmdbReader(directory)) as reader:
        documents = {table: len(reader.documents(table)) for table in ("tenants", "tokens")}
        return {"records": reader.count(), **documents}
