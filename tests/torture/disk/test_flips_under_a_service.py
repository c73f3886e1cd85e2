"""Bits flipped in the file of a running service: no reader is ever given a wrong byte, and what is bad is replaced.

In values, which are nearly all of a file, the service must live on. A flipped bit in a page of a tree can end it, as a
flipped bit of its memory can; then its next start must mend what is there.
"""

import os
import random
from collections import Counter
from pathlib import Path

import httpx
import pytest
import xxhash

from damage import PAGE, flip, tree_pages
from kept import ENV, Kept
from service_caller import Caller
from service_samples import split
from serving import ServiceProcess, running_service

pytestmark = pytest.mark.torture

FLIPS = int(os.environ.get("KVCAIRN_TORTURE_FLIPS", "2000"))
SEED = int(os.environ.get("KVCAIRN_TORTURE_SEED", "4"))
PER_ROUND = 10
ANSWER_SECONDS = 20


class WrongByte(Exception):
    """A record that nothing gives away, under the key of another or with other bytes."""


class Round:
    """Some flips, then every record asked for, the bad ones reported, and all of them stored again."""

    def __init__(self, kept: Kept, token: str) -> None:
        self._kept, self._token = kept, token
        self.seen: Counter[str] = Counter()

    def run(self, service: ServiceProcess) -> None:
        with service.http(token=self._token, timeout_seconds=ANSWER_SECONDS) as http:
            caller = Caller(http)
            caller.register(self._kept.document)
            for key, record in zip(self._kept.keys, self._kept.records, strict=True):
                self._ask(caller, key, record)
            stored = caller.store(b"".join(self._kept.records))
            self.seen[f"stores answered {stored.status_code}"] += 1
            before = self.seen["right"]
            for key, record in zip(self._kept.keys, self._kept.records, strict=True):
                self._ask(caller, key, record)
            if self.seen["right"] - before == len(self._kept.keys):
                self.seen["rounds made good"] += 1

    def _ask(self, caller: Caller, key: bytes, record: bytes) -> None:
        try:
            (got,) = split(caller.fetch(self._kept.document, ("history", key)).content)
        except httpx.RemoteProtocolError:
            self.seen["cut short"] += 1
            return
        if got == record:
            self.seen["right"] += 1
        elif got[6:8] == b"\x01\x00" and got[64:96] == key:
            self.seen["missing"] += 1
        else:
            self.seen["bad"] += 1
            is_sealed = got[112:128] == xxhash.xxh3_128(got[:112] + got[128:]).digest()
            if is_sealed and got[64:96] == key:
                raise WrongByte(f"seed {SEED}: a wrong record under {key.hex()}")
            report = {**caller.naming(self._kept.document), "kind": "history", "key": key.hex()}
            del report["records"]
            assert caller.http.post("/v1/records:report", json=report).status_code == 200


@pytest.mark.parametrize("where", ["values", "trees"])
def test_no_bit_that_is_flipped_under_a_service_reaches_a_reader(tmp_path, where):
    data, chance = tmp_path / "data" / "data.mdb", random.Random(SEED)
    env = {**ENV, "KVCAIRN_SCRUB_BYTES_PER_SECOND": "64MiB", "KVCAIRN_SWEEP_SECONDS": "0.5"}
    ends: Counter[str] = Counter()
    left, rounds = FLIPS // 4, None
    while left > 0:
        with running_service(tmp_path / "data", env=env) as service:
            if rounds is None:
                kept = Kept(service)
                kept.store(service, len(kept.records))
                rounds = Round(kept, kept.token)
            try:
                while left > 0:
                    flip_some(data, where, chance)
                    left -= PER_ROUND
                    rounds.run(service)
                    with service.http() as http:
                        assert http.get("/healthz").status_code == 200, "it asks for a restart"
            except (httpx.HTTPError, AssertionError) as error:
                ends[f"{str(error) or type(error).__name__}, status {service.returncode}"] += 1
                assert where == "trees" or service.returncode is None, service.log()
            service.kill()
    assert rounds is not None
    print(f"{where}: {dict(rounds.seen)}, restarts {dict(ends)}")
    assert rounds.seen["rounds made good"] > 0


def flip_some(data: Path, where: str, chance: random.Random) -> None:
    content = data.read_bytes()
    trees = set(tree_pages(content))
    pages = sorted(trees) if where == "trees" else [n for n in range(2, len(content) // PAGE) if n not in trees]
    for _ in range(PER_ROUND):
        flip(data, at=chance.choice(pages) * PAGE + chance.randrange(PAGE), bit=chance.randrange(8))
