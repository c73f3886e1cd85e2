"""What encryption at rest costs: a V4-Flash prefix fetched, and stored over freed space, encrypted and plain."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import httpx

from benchmarks.measure import Figure, Timing, interleave, timed
from benchmarks.prefixes import Prefix
from benchmarks.store import FreshPrefix, payload_source
from examples.service import Running, running_service
from kvcairn_client.client import Client

BLOCKS = 256
KEY = {"KVCAIRN_ENCRYPTION_KEY": bytes(range(32)).hex()}


@dataclass(frozen=True)
class _Side:
    """One service, plain or encrypting, and a client of it."""

    service: Running
    client: Client

    def store_fresh(self, source: Prefix, number: int) -> float:
        """Seconds to store a prefix under new names; it is deleted again, so that the next one takes its space."""
        fresh = FreshPrefix(source, number, self.client)
        seconds = timed(lambda: fresh.store(self.client))
        fresh.delete(self.service)
        return seconds


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    source = payload_source(2 if tiny else BLOCKS)
    with ExitStack() as stack:
        sides = {"plain": _side(stack, {}), "encrypted": _side(stack, KEY)}
        stores = _stores(sides, source, rounds)
        for side in sides.values():
            source.store(side.client)
        fetches = interleave(
            {name: lambda side=side: source.read(side.client) for name, side in sides.items()},  # type: ignore[misc]
            rounds=rounds,
        )
    size_bytes = source.payload_bytes
    return [
        _slower("V4-Flash prefix, TCP: fetch, encrypted on the disk / plain", fetches, size_bytes=size_bytes),
        _slower("V4-Flash prefix, TCP: store over freed space, encrypted / plain", stores, size_bytes=size_bytes),
    ]


def _side(stack: ExitStack, env: Mapping[str, str]) -> _Side:
    service = stack.enter_context(running_service("--capacity", "3GiB", env=env))
    if env:
        httpx.patch(f"{service.url}/v1/tenants/default", json={"encrypt": True}).raise_for_status()
    return _Side(service, stack.enter_context(Client(service.url)))


def _stores(sides: Mapping[str, _Side], source: Prefix, rounds: int) -> dict[str, Timing]:
    """Rounds in turn, the first not counted: it takes new space."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            seconds[name].append(side.store_fresh(source, number))
    return {name: Timing(tuple(found[1:])) for name, found in seconds.items()}


def _slower(work: str, timings: Mapping[str, Timing], *, size_bytes: int) -> Figure:
    encrypted, plain = timings["encrypted"], timings["plain"]
    detail = (
        f"{size_bytes / 1e6:,.1f} MB in {encrypted.median:.3f} s ({encrypted.rate(size_bytes)}, {encrypted.spread} s)"
    )
    limit = f"plain {plain.rate(size_bytes)} ({plain.spread} s)"
    return Figure(work, encrypted.median / plain.median, "× the time", detail, limit=limit)
