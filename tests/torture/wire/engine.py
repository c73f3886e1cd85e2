"""A real engine, a real service, and what is right between them: for tests that put a faulty network there."""

import hashlib
import struct
import time
from dataclasses import dataclass
from typing import Any

import torch

from kvcairn_client.budgets import Budgets
from kvcairn_client.client import Client
from kvcairn_client.transformers import CachedPrefill
from service_caller import Caller
from service_samples import RECORDS, split
from serving import ServiceProcess
from sockets import eventually
from tiny_models import Oracle, differences, make_model, make_prompt, same_bits

STEP, BLOCKS = 128, 5
RATIOS = (0, 4, 128)
KINDS = ("history", "state", "window")
FLUSH_SECONDS = 10.0

Name = tuple[str, int]
"""A record's kind and the block at whose end it stands."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """seconds: until the engine had its answer. hit_tokens: what it did not compute itself."""

    seconds: float
    hit_tokens: int


class Engine:
    """A small model, one prompt of it, and the service that both use; `good` are the records that belong there.

    good: by name, the bytes that an engine on a good network stores, once raw and once compressed.
    """

    def __init__(self, service: ServiceProcess) -> None:
        """It listens on a port and on a Unix socket, and holds nothing yet."""
        self.urls = service.url, service.uds_url
        self._model = make_model(RATIOS)
        self._prompt = make_prompt(BLOCKS * STEP + 40)
        self._cache, self._logits = Oracle(self._model, step=STEP).run(self._prompt)
        self._http = service.http()
        self.good: list[dict[Name, bytes]] = []
        self._layout: tuple[str, bytes] = "", b""
        for codec in ("raw", "shuffle-zstd"):
            self._forget(codec)
            assert self.prefill(service.url, Budgets()).hit_tokens == 0
            (known,) = self._http.get("/v1/layouts").json()["layouts"]
            self._layout = known["fingerprint"], self._http.get(f"/v1/layouts/{known['fingerprint']}").content
            self.good.append(self.stored())

    def prefill(self, url: str, budgets: Budgets) -> Prefilled:
        """The prompt in a process that knows nothing of it, then its stores.

        AssertionError where a bit of the cache or of the logits is not an uninterrupted run's.
        """
        with (
            Client(url, budgets=budgets) as client,
            CachedPrefill(self._model, client, model_id="tiny", block_tokens=STEP) as prefill,
        ):
            started = time.monotonic()
            result = prefill(self._prompt)
            seconds = time.monotonic() - started
            prefill.flush(FLUSH_SECONDS)
        assert same_bits(result.logits, self._logits)
        assert differences(result.cache, self._cache) == []
        return Prefilled(seconds, result.report.hit_tokens)

    def begin(self, names: list[Name], *, compressed: bool) -> None:
        """Let the service hold these records alone."""
        self._forget("shuffle-zstd" if compressed else "raw")
        fingerprint, document = self._layout
        headers = {"content-type": "application/json"}
        assert self._http.put(f"/v1/layouts/{fingerprint}", content=document, headers=headers).status_code == 201
        body = b"".join(self.good[compressed][name] for name in names)
        if body:
            answer = self._http.post("/v1/records:store", content=body, headers={"content-type": RECORDS})
            assert answer.json()["rejected"] == [], answer.text

    def stored(self) -> dict[Name, bytes]:
        """Every record of the service, read past any link. AssertionError where the statistics count others as well.

        Waits for what a cut link left under way: the service ends it by itself.
        """
        assert eventually(lambda: Caller(self._http).metric("kvcairn_requests_in_flight") == 1)
        fingerprint, _ = self._layout
        keys = self._keys()
        names = [(kind, block) for kind in KINDS for block in range(BLOCKS)]
        records = [{"kind": kind, "key": keys[block].hex()} for kind, block in names]
        answer = self._http.post("/v1/records:fetch", json={"layout": fingerprint, "records": records})
        found = {name: each for name, each in zip(names, split(answer.content), strict=True) if not each[6] & 1}
        counted = self._http.get("/v1/stats").json()
        assert counted["records"] == len(found), counted
        assert [each["fingerprint"] for each in self._http.get("/v1/layouts").json()["layouts"]] == [fingerprint]
        return found

    def close(self) -> None:
        self._http.close()

    def _keys(self) -> list[bytes]:
        """As the wire page says."""
        fingerprint = bytes.fromhex(self._layout[0])
        key, keys = hashlib.sha256(b"kvcairn/1" + fingerprint + struct.pack("<I", 0)).digest(), []
        for block in self._prompt[0, : BLOCKS * STEP].to(torch.int64).reshape(BLOCKS, STEP).tolist():
            key = hashlib.sha256(key + struct.pack(f"<{STEP}I", *block)).digest()
            keys.append(key)
        return keys

    def _forget(self, codec: str) -> None:
        """An empty tenant whose writers store every state, with this codec."""
        for each in self._http.get("/v1/layouts").json()["layouts"]:
            assert self._http.delete(f"/v1/layouts/{each['fingerprint']}").status_code == 204
        settings: dict[str, Any] = {"strategy": {"kind": "full"}, "codec": codec}
        assert self._http.patch("/v1/tenants/default", json=settings).status_code == 200
