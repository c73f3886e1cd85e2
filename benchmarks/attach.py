"""A client on the service's host, which copies records out of the data directory: verified, beside a bare memcpy.

Two threads either way: the client's own pair, and two that copy a half each from one warm buffer to another.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

from benchmarks.measure import Figure, interleave, share
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS = 256
THREADS = 2
LEAST_SHARE = 0.75


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "2GiB"))
        attached = stack.enter_context(Client(service.url, attach=service.data))
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        prefix.store(attached)
        timings = interleave(
            {"memcpy": _memcpy(prefix.buffer, pool), "attach": lambda: _read(prefix, attached)}, rounds=rounds
        )
    return [
        share("V4-Flash prefix, attached: fetch, copied and verified / memcpy, two threads",
              timings["attach"], "memcpy", timings["memcpy"], size_bytes=prefix.payload_bytes, at_least=LEAST_SHARE)
    ]  # fmt: skip


def _read(prefix: Prefix, client: Client) -> None:
    result = prefix.read(client)
    assert result.bytes_received == 0, f"{result.bytes_received} bytes came over the network"


def _memcpy(buffer: memoryview, pool: ThreadPoolExecutor) -> Callable[[], object]:
    """Fill the buffer from another of its size, a part a thread."""
    target = np.frombuffer(buffer, np.uint8)
    source = np.full_like(target, 0x5A)
    pairs = list(zip(np.array_split(target, THREADS), np.array_split(source, THREADS), strict=True))
    return lambda: [done.result() for done in [pool.submit(np.copyto, *pair) for pair in pairs]]
