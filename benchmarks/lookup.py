"""A million tokens in one lookup: 2,048 keys, in a small store and in a large one, beside a Redis asked for as many."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from benchmarks.many_records import CAPACITY, fill, one_byte_layout
from benchmarks.measure import Figure, Timing, Work, interleave
from benchmarks.peer_servers import is_installed, redis_server
from examples.service import running_service
from kvcairn_client.client import Client

BLOCKS, FEW, MANY = 2_048, 1_000, 1_000_000
AT_MOST_OF_REDIS, AT_MOST_OF_FEW = 0.5, 1.3
TURNS_A_ROUND = 9


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    """Both services and Redis are up at once and take turns, nine a round: one lookup takes milliseconds."""
    blocks, few, many = (16, 8, 64) if tiny else (BLOCKS, FEW, MANY)
    work: dict[str, Work] = {}
    with ExitStack() as stack:
        if not tiny or is_installed("redis-server"):
            work["redis"] = stack.enter_context(_redis(blocks))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcairn-lookup-")))
        work["few"], _ = stack.enter_context(_service(directory / "few", blocks, others=few))
        work["many"], start_seconds = stack.enter_context(_service(directory / "many", blocks, others=many))
        timings = interleave(work, rounds=rounds * TURNS_A_ROUND)
    figures = [_beside_few(timings["many"], timings["few"], blocks, few, many)]
    if "redis" in timings:
        figures.insert(0, _beside_redis(timings["many"], timings["redis"], blocks, many))
    detail = f"{many:,} records, their index read into memory before the first request"
    return [*figures, Figure("start of the service", start_seconds, "s", detail)]


@contextmanager
def _service(data: Path, blocks: int, *, others: int) -> Iterator[tuple[Work, float]]:
    """Looks up a whole prefix that a service holds among `others`; and the seconds that the service took to start."""
    keys, layout = fill(data, blocks=blocks, others=others), one_byte_layout()
    start = time.perf_counter()
    with running_service(*CAPACITY, data=data) as service, Client(service.url) as client:
        start_seconds = time.perf_counter() - start

        def look_up() -> None:
            found = client.lookup(layout, keys)
            assert found.history_blocks == blocks, found

        yield look_up, start_seconds


@contextmanager
def _redis(blocks: int) -> Iterator[Work]:
    """A Redis that holds as many keys of 32 bytes: asks for all of them in one pipeline without a transaction."""
    keys = [os.urandom(32) for _ in range(blocks)]
    with redis_server() as place, redis.Redis(port=place.port) as client:
        client.mset(dict.fromkeys(keys, b"\0"))

        def exists() -> None:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.exists(key)
            assert pipeline.execute() == [1] * blocks

        yield exists


def _beside_redis(ours: Timing, other: Timing, blocks: int, many: int) -> Figure:
    work = f"lookup of {blocks:,} keys / Redis"
    detail = f"{milliseconds(ours)} among {many:,} records, client to client"
    limit = f"redis-py, EXISTS pipelined: {milliseconds(other)}"
    return Figure(work, ours.median / other.median, "×", detail, limit=limit, at_most=AT_MOST_OF_REDIS)


def _beside_few(ours: Timing, other: Timing, blocks: int, few: int, many: int) -> Figure:
    work = f"lookup of {blocks:,} keys: a large store / a small one"
    detail, limit = f"{milliseconds(ours)} among {many:,} records", f"{milliseconds(other)} among {few:,}"
    return Figure(work, ours.median / other.median, "×", detail, limit=limit, at_most=AT_MOST_OF_FEW)


def milliseconds(timing: Timing) -> str:
    """Median and spread of something quick."""
    shown = (timing.median, min(timing.seconds), max(timing.seconds))
    return "{:.2f} ms ({:.2f}..{:.2f})".format(*(1e3 * seconds for seconds in shown))
