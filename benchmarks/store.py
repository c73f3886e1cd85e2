"""Storing the real one: a V4-Flash prefix, verified and committed, beside what a bare socket and the disk take.

The limit is the slower of the two: the same bytes through a raw socket into another process, and the same bytes
written in sequence over a file on the same file system, with an fdatasync every 32 MB. Both files are there already
and have their blocks: ours re-uses the pages of what was deleted. Each round stores a prefix under
new names and deletes it afterwards, so that nothing is there already; payloads are made before the clock starts.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np

from benchmarks.measure import Figure, Timing, share, timed
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
    buffer = source.buffer
    raw, disk, store = [], [], []
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "4GiB"))
        client = stack.enter_context(Client(service.url))
        peer = stack.enter_context(raw_peer(size_bytes=len(buffer)))
        path = service.data.with_name("sequential")
        path.touch()
        for number in range(rounds + 1):
            raw.append(timed(lambda: peer.send(buffer)))
            disk.append(timed(lambda: _write(path, buffer)))
            fresh = FreshPrefix(source, number, client)
            store.append(timed(lambda: fresh.store(client)))  # noqa: B023 - called at once
            fresh.delete(service)
    raw_timing, disk_timing, ours = (Timing(tuple(seconds[1:])) for seconds in (raw, disk, store))
    name, limit = max(("raw socket", raw_timing), ("write + fdatasync", disk_timing), key=lambda each: each[1].median)
    figure = share("V4-Flash prefix, TCP: store, verified and committed / the slower of raw socket and disk",
                   ours, name, limit, size_bytes=len(buffer), at_least=LEAST_SHARE)  # fmt: skip
    rates = f"raw socket {raw_timing.rate(len(buffer))}, write + fdatasync {disk_timing.rate(len(buffer))}"
    return [replace(figure, detail=f"{figure.detail}; {rates}")]


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
