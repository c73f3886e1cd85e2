"""Storing the real one: a V4-Flash prefix, verified and committed, beside what a bare socket and the disk take.

The limit is the slower of the two: the same bytes through a raw socket into another process, and the same bytes
written in sequence on the same file system, with an fdatasync every 32 MB. Each round stores a prefix under new names,
so that nothing is there already; payloads are made before the clock starts. First into new space, as into new files:
nothing is deleted, since memory for the page cache costs the more the longer nobody used it. Then over space that was
freed, as over a file that is there: each prefix is deleted after its round.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np

from benchmarks.measure import Figure, Timing, Work, share, timed
from benchmarks.prefixes import Prefix
from benchmarks.raw_socket import raw_peer
from examples.service import Running, running_service
from kvcairn_client.client import Client
from kvcairn_client.records import Outgoing
from kvcairn_protocol.deepseek_v4 import flash
from kvcairn_protocol.layout import Layout

BLOCKS = 256
SYNC_BYTES = 32 << 20
WRITE_BYTES = 2 << 20
LEAST_SHARE = 0.75


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    source = payload_source(2 if tiny else BLOCKS)
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "6GiB"))
        client = stack.enter_context(Client(service.url))
        peer = stack.enter_context(raw_peer(size_bytes=len(source.buffer)))
        bench = _Bench(source, service, client, lambda: peer.send(source.buffer))
        new = bench.measure(range(rounds + 1), frees=False)
        bench.free_all()
        freed = bench.measure(range(rounds + 1, 2 * (rounds + 1)), frees=True)
    work = "V4-Flash prefix, TCP: store, verified and committed, {} / the slower of raw socket and disk"
    return [
        _figure(work.format("into new space"), new, len(source.buffer), at_least=LEAST_SHARE),
        _figure(work.format("over freed space"), freed, len(source.buffer), at_least=None),
    ]


class _Bench:
    """One service, and a file beside its data. send: the raw socket's part of a round."""

    def __init__(self, source: Prefix, service: Running, client: Client, send: Work) -> None:
        self._source, self._service, self._client, self._send = source, service, client, send
        self._files = service.data.with_name("sequential")
        self._files.mkdir()
        self._stored: list[FreshPrefix] = []

    def measure(self, numbers: range, *, frees: bool) -> dict[str, Timing]:
        """One round a number, the first not counted."""
        seconds: dict[str, list[float]] = {"raw socket": [], "write + fdatasync": [], "ours": []}
        for number in numbers:
            file = self._files / ("over" if frees else str(number))
            file.touch()
            fresh = FreshPrefix(self._source, number, self._client)
            seconds["raw socket"].append(timed(self._send))
            seconds["write + fdatasync"].append(timed(lambda: _write(file, self._source.buffer)))  # noqa: B023 - likewise
            seconds["ours"].append(timed(lambda: fresh.store(self._client)))  # noqa: B023 - called at once
            self._stored.append(fresh)
            if frees:
                self.free_all()
        return {name: Timing(tuple(found[1:])) for name, found in seconds.items()}

    def free_all(self) -> None:
        """Delete what was stored so far."""
        while self._stored:
            self._stored.pop().delete(self._service)


def _figure(work: str, timings: dict[str, Timing], size_bytes: int, *, at_least: float | None) -> Figure:
    limits = {name: timing for name, timing in timings.items() if name != "ours"}
    name = max(limits, key=lambda each: limits[each].median)
    figure = share(work, timings["ours"], name, limits[name], size_bytes=size_bytes, at_least=at_least)
    rates = ", ".join(f"{name} {timing.rate(size_bytes)}" for name, timing in limits.items())
    return replace(figure, detail=f"{figure.detail}; {rates}")


def payload_source(blocks: int) -> Prefix:
    """A prefix whose buffer holds random payloads, to be stored under other names."""
    source = Prefix(flash("benchmark"), blocks)
    source.buffer[:] = np.random.default_rng(0).bytes(len(source.buffer))
    return source


class FreshPrefix:
    """The payloads of `source` under names that the service has never seen, its layout registered."""

    def __init__(self, source: Prefix, number: int, client: Client) -> None:
        self.layout: Layout = flash(f"benchmark {number}")
        payloads = [wanted.target for wanted in source.wanted()]
        self.records: Sequence[Outgoing] = Prefix(self.layout, source.blocks).records_of(payloads)
        client.register(self.layout)

    def store(self, client: Client) -> None:
        """Store all; returns once all is committed."""
        answer = client.store(self.layout, self.records, codec="raw")
        assert answer.stored == len(self.records), answer

    def delete(self, service: Running) -> None:
        """Delete the layout, and its records with it."""
        httpx.delete(f"{service.url}/v1/layouts/{self.layout.fingerprint.hex()}", timeout=60).raise_for_status()


def _write(path: Path, buffer: memoryview) -> None:
    with path.open("r+b", buffering=0) as file:
        for start in range(0, len(buffer), SYNC_BYTES):
            for at in range(start, min(start + SYNC_BYTES, len(buffer)), WRITE_BYTES):
                file.write(buffer[at : min(at + WRITE_BYTES, start + SYNC_BYTES)])
            os.fdatasync(file.fileno())
