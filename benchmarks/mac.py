"""What a MAC by clients costs: a V4-Flash prefix fetched with a key and without, and the algorithms alone."""

import hashlib
import hmac
from contextlib import ExitStack

import xxhash

from benchmarks.measure import Figure, Timing, interleave
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash
from kvcairn_protocol.layout import Kind

BLOCKS = 256
KEY = bytes(range(32))


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    blocks = 2 if tiny else BLOCKS
    return [*_algorithms(flash("benchmark").payload_bytes(Kind.HISTORY), rounds=rounds), *_transfers(blocks, rounds)]


def _algorithms(size_bytes: int, *, rounds: int) -> list[Figure]:
    """One thread over one history block that lies in memory."""
    block = Prefix(flash("benchmark"), 1).payload(0)
    timings = interleave(
        {
            "HMAC-SHA-256": lambda: hmac.digest(KEY, block, "sha256"),
            "BLAKE2b, keyed": lambda: hashlib.blake2b(block, key=KEY, digest_size=32).digest(),
            "XXH3-128, the checksum": lambda: xxhash.xxh3_128(block).digest(),
        },
        rounds=rounds * 5,
    )
    return [
        Figure(f"{name}, one thread", size_bytes / 1e9 / timing.median, "GB/s", f"one history block, {size_bytes:,} B")
        for name, timing in timings.items()
    ]


def _transfers(blocks: int, rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "4GiB"))
        plain = stack.enter_context(Client(service.url, mac_key=()))
        signing = stack.enter_context(Client(service.url, mac_key=KEY))
        bare, signed = Prefix(flash("benchmark"), blocks), Prefix(signing.mac_keys.authenticated(flash("b")), blocks)
        bare.store(plain)
        signed.store(signing)
        fetches = interleave({"plain": lambda: bare.read(plain), "mac": lambda: signed.read(signing)}, rounds=rounds)
    return [_slower("V4-Flash prefix, TCP: fetch with a MAC checked / without", fetches, size_bytes=bare.payload_bytes)]


def _slower(work: str, timings: dict[str, Timing], *, size_bytes: int) -> Figure:
    with_mac, without = timings["mac"], timings["plain"]
    detail = f"{size_bytes / 1e6:,.1f} MB in {with_mac.median:.3f} s ({with_mac.rate(size_bytes)}, {with_mac.spread} s)"
    limit = f"without {without.rate(size_bytes)} ({without.spread} s)"
    return Figure(work, with_mac.median / without.median, "× the time", detail, limit=limit)
