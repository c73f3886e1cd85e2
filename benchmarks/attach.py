"""A client on the service's host, which copies records out of the data directory: verified, beside a bare memcpy.

Two threads either way: the client's own pair, and two that copy a half each from one warm buffer to another, in pieces
of a record, which is how records come. One memcpy of a whole half goes past the caches, twice as fast, and leaves
nothing in them to verify; its rate is given for what it is.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Figure, interleave, share
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash
from kvcairn_protocol.layout import Kind

BLOCKS = 256
THREADS = 2
LEAST_SHARE = 0.75

Bytes = NDArray[np.uint8]
Pair = tuple[Bytes, Bytes]


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "2GiB"))
        attached = stack.enter_context(Client(service.url, attach=service.data))
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        prefix.store(attached)
        halves = _halves(prefix.buffer)
        timings = interleave(
            {
                "halves": lambda: _copy(halves, pool, piece_bytes=len(prefix.buffer)),
                "records": lambda: _copy(halves, pool, piece_bytes=prefix.layout.payload_bytes(Kind.HISTORY)),
                "attach": lambda: _read(prefix, attached),
            },
            rounds=rounds,
        )
    figure = share("V4-Flash prefix, attached: fetch, copied and verified / memcpy by records, two threads",
                   timings["attach"], "memcpy", timings["records"], size_bytes=prefix.payload_bytes,
                   at_least=LEAST_SHARE)  # fmt: skip
    return [replace(figure, detail=f"{figure.detail}; memcpy by halves {timings['halves'].rate(prefix.payload_bytes)}")]


def _read(prefix: Prefix, client: Client) -> None:
    result = prefix.read(client)
    assert result.bytes_received == 0, f"{result.bytes_received} bytes came over the network"


def _halves(buffer: memoryview) -> list[Pair]:
    """The buffer and another of its size, a part for each thread."""
    target = np.frombuffer(buffer, np.uint8)
    source = np.full_like(target, 0x5A)
    return list(zip(np.array_split(target, THREADS), np.array_split(source, THREADS), strict=True))


def _copy(halves: list[Pair], pool: ThreadPoolExecutor, *, piece_bytes: int) -> None:
    for done in [pool.submit(_copy_pieces, *half, piece_bytes) for half in halves]:
        done.result()


def _copy_pieces(target: Bytes, source: Bytes, piece_bytes: int) -> None:
    for at in range(0, len(target), piece_bytes):
        np.copyto(target[at : at + piece_bytes], source[at : at + piece_bytes])
