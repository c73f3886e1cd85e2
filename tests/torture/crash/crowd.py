"""Crowd: a tenant under pressure, by its own quota or by a full store. What it stored may be evicted, leaf first."""

import random
from typing import Any

import httpx

from service_caller import Caller
from service_samples import layout_document
from torture.crash.journal import Journal, Name
from torture.crash.keeper import Prompts
from torture.crash.worker import Gate, Worker, differing, fetch

CHAINS, BATCH_BLOCKS = 40, 5


class Crowd(Worker):
    """Looks up a prompt, stores what comes next, and never deletes. newest: the last acknowledged run of blocks.

    is_alone: only its own stores can push its records out, so that the newest run must outlive the kill.
    """

    def __init__(self, rng: random.Random, *, is_alone: bool) -> None:
        super().__init__(rng)
        self.journal = Journal(keeps_all=False)
        self.newest: list[Name] = []
        self._is_alone = is_alone
        self._prompts: Prompts | None = None

    @property
    def documents(self) -> dict[bytes, dict[str, Any]]:
        return {self._prompts.fingerprint: self._prompts.document} if self._prompts else {}

    def step(self, http: httpx.Client, gate: Gate) -> None:
        if self._prompts is None:
            self._register(http)
        elif self.rng.random() < 0.7:
            self._store(http, gate, self._prompts)
        else:
            self._read(http)

    def _register(self, http: httpx.Client) -> None:
        document = layout_document(history_bytes=6_000, state_bytes=3_000, model=f"crowd-{self.rng.getrandbits(64):x}")
        prompts = Prompts(document, chains=CHAINS)
        assert Caller(http).register(document).status_code in (200, 201)
        self._prompts = prompts
        self.journal.chains = prompts.histories

    def _store(self, http: httpx.Client, gate: Gate, prompts: Prompts) -> None:
        histories = self.rng.choice(prompts.histories)
        there = Caller(http).lookup(prompts.document, [name.key for name in histories]).json()["history_blocks"]
        run = histories[: there + self.rng.randint(1, BATCH_BLOCKS)]
        # Whole, for another tenant's store may evict its end after the lookup; what is in a body is safe from that.
        batch = [*run, run[-1]._replace(kind="state")]
        self.journal.storing({name: prompts.records[name] for name in batch})
        gate.storing.set()
        answer = Caller(http).store(b"".join(prompts.records[name] for name in batch))
        assert answer.status_code == 200, answer.text
        assert answer.json()["rejected"] == []
        self.journal.stored(batch)
        if run[there:]:
            self.newest = run

    def _read(self, http: httpx.Client) -> None:
        names = self.rng.sample(list(self.journal.known), min(16, len(self.journal.known)))
        found = fetch(http, names, self.documents) if names else {}
        wrong = [name for name, record in found.items() if record not in (None, self.journal.known[name].record)]
        assert not wrong, f"other bytes than were stored: {wrong}"

    def faults(self, http: httpx.Client) -> list[str]:
        """As the keeper's."""
        chains = {name for chain in self.journal.chains for name in chain}
        names = [*self.journal.known, *(chains - set(self.journal.known))] if self.journal.known else []
        found = fetch(http, names, self.documents)
        faults = self.journal.faults({**dict.fromkeys(chains), **found})
        faults += [f"a state is there without its block {name}" for name in _lonely(found) - self.journal.unsure]
        if self._is_alone:
            faults += [f"the newest block {name} was evicted" for name in self.newest if found[name] is None]
        faults += differing(http, self.rng.sample(list(found), min(8, len(found))), found, self.documents)
        self.journal.learn(found)
        return faults


def _lonely(found: dict[Name, bytes | None]) -> set[Name]:
    """States without the block at their key, which goes after them."""
    states = {name for name, record in found.items() if name.kind == "state" and record is not None}
    return {name for name in states if found[name._replace(kind="history")] is None}
