"""Keeper: a tenant whose records are never evicted. It stores, deletes, fetches, and drops whole layouts."""

import random
from typing import Any

import httpx

from service_caller import Caller
from service_samples import RECORDS, STATE, chain, chain_records, fingerprint, layout_document
from torture.crash.journal import Fate, Journal, Name
from torture.crash.worker import Gate, Worker, differing, fetch

BLOCKS, BATCH_BLOCKS = 24, 6
SMALL, LARGE = {"history_bytes": 700, "state_bytes": 400}, {"history_bytes": 150_000, "state_bytes": 40_000}


class Prompts:
    """A registered layout's chains, and every record that can be stored of them."""

    def __init__(self, document: dict[str, Any], chains: int) -> None:
        self.document = document
        self.fingerprint = fingerprint(document)
        self.records: dict[Name, bytes] = {}
        self.histories = [self._add_chain(seed) for seed in range(chains)]

    def _add_chain(self, seed: int) -> list[Name]:
        keys = chain(self.document, BLOCKS, seed=seed)
        histories = [Name(self.fingerprint, "history", key) for key in keys]
        states = [Name(self.fingerprint, "state", key) for key in keys]
        self.records |= zip(histories, chain_records(self.document, keys), strict=True)
        self.records |= zip(states, chain_records(self.document, keys, kind=STATE), strict=True)
        return histories


class Keeper(Worker):
    """documents: of every layout it ever used, by fingerprint, so that what is gone can be asked for as well.

    room_bytes: beyond this its oldest layout is dropped, so that it stays within what is its own.
    """

    def __init__(self, rng: random.Random, *, room_bytes: int = 12 << 20) -> None:
        super().__init__(rng)
        self._room_bytes = room_bytes
        self.journal = Journal(keeps_all=True)
        self.documents: dict[bytes, dict[str, Any]] = {}
        self._prompts: list[Prompts] = []
        self._gone: set[bytes] = set()

    def step(self, http: httpx.Client, gate: Gate) -> None:
        if not self._prompts or (len(self._prompts) < 4 and self.rng.random() < 0.05):
            self._register(http)
        elif self.journal.charged_bytes() > self._room_bytes or self.rng.random() < 0.01:
            self._drop_layout(http)
        else:
            act = self.rng.choices([self._store, self._put, self._delete, self._read], [5, 1, 2, 2])[0]
            act(http, gate)

    def _register(self, http: httpx.Client) -> None:
        sizes = LARGE if self.rng.random() < 0.3 else SMALL
        document = layout_document(**sizes, model=f"keeper-{self.rng.getrandbits(64):x}")
        # Known from here on: whether it was registered does not matter, a second time is no error.
        prompts = Prompts(document, chains=3)
        self.documents[prompts.fingerprint] = document
        assert Caller(http).register(document).status_code in (200, 201)
        self._prompts.append(prompts)

    def _store(self, http: httpx.Client, gate: Gate) -> None:
        batch = self._batch(self.rng.randint(1, BATCH_BLOCKS))
        fresh = [name for name in batch if self.journal.fate(name) is Fate.GONE]
        self.journal.storing(batch)
        gate.storing.set()
        answer = Caller(http).store(b"".join(batch.values()))
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"stored": len(fresh), "present": len(batch) - len(fresh), "rejected": []}
        self.journal.stored(batch)

    def _batch(self, blocks: int) -> dict[Name, bytes]:
        """The next blocks that a chain lacks, the state behind them, and at times one record that is there."""
        prompts = self.rng.choice(self._prompts)
        histories = self.rng.choice(prompts.histories)
        lacking = [name for name in histories if self.journal.fate(name) is Fate.GONE][:blocks] or histories[:1]
        names = [*lacking, lacking[-1]._replace(kind="state")]
        there = [name for name in histories if self.journal.fate(name) is Fate.THERE]
        if there and self.rng.random() < 0.3:
            names.append(self.rng.choice(there))
        return {name: prompts.records[name] for name in names}

    def _put(self, http: httpx.Client, gate: Gate) -> None:
        prompts = self.rng.choice(self._prompts)
        name = self.rng.choice(self.rng.choice(prompts.histories))
        is_new = self.journal.fate(name) is Fate.GONE
        self.journal.storing({name: prompts.records[name]})
        gate.storing.set()
        path = Caller.path(prompts.document, name.kind, name.key)
        answer = http.put(path, content=prompts.records[name], headers={"content-type": RECORDS})
        assert answer.status_code == (201 if is_new else 200), answer.text
        self.journal.stored([name])

    def _delete(self, http: httpx.Client, gate: Gate) -> None:  # noqa: ARG002 - as its neighbours
        there = self.journal.names(Fate.THERE)
        if not there:
            return
        name = self.rng.choice(there)
        self.journal.deleting([name])
        answer = http.delete(Caller.path(self.documents[name.layout], name.kind, name.key))
        assert answer.status_code == 204, answer.text
        self.journal.deleted([name])

    def _drop_layout(self, http: httpx.Client) -> None:
        prompts = self._prompts[0]
        self.journal.deleting(prompts.records)
        answer = http.delete(f"/v1/layouts/{prompts.fingerprint.hex()}")
        assert answer.status_code == 204, answer.text
        self.journal.deleted(prompts.records)
        self._prompts.remove(prompts)

    def _read(self, http: httpx.Client, gate: Gate) -> None:  # noqa: ARG002 - as its neighbours
        names = self.rng.sample(list(self.journal.known), min(16, len(self.journal.known)))
        found = fetch(http, names, self.documents) if names else {}
        assert self.journal_says(names) == found, "a record that nobody touches has changed"

    def journal_says(self, names: list[Name]) -> dict[Name, bytes | None]:
        """What a service that was not killed must have."""
        known = self.journal.known
        return {name: known[name].record if known[name].fate is Fate.THERE else None for name in names}

    def faults(self, http: httpx.Client) -> list[str]:
        """Ask a new service for every record that ever was, and learn from it."""
        registered = {each["fingerprint"] for each in http.get("/v1/layouts").json()["layouts"]}
        self._prompts = [each for each in self._prompts if each.fingerprint.hex() in registered]
        found = fetch(http, self.journal.known, self.documents)
        faults = self.journal.faults(found)
        faults += differing(http, self.rng.sample(list(found), min(8, len(found))), found, self.documents)
        self.journal.learn(found)
        self._forget(registered)
        return faults

    def _forget(self, registered: set[str]) -> None:
        """Of layouts that are gone, ask once more after the next kill, and then no more."""
        gone = {layout for layout in self.documents if layout.hex() not in registered}
        old, self._gone = gone & self._gone, gone
        for layout in old:
            del self.documents[layout]
        for name in [name for name in self.journal.known if name.layout in old]:
            del self.journal.known[name]
