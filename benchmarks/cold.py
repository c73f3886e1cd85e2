"""The first fetch of a prefix that is on disk alone, beside a sequential read of as many bytes of the data file.

Both start with the file's pages out of memory. Pages that a process has mapped cannot be dropped, so each round has a
service of its own, started after a drop; what the start itself read ahead is dropped again. The clock starts only where
the prefix is then seen to be cold.
"""

import tempfile
from pathlib import Path

from benchmarks.measure import Figure, Timing, share, timed
from benchmarks.page_cache import drop, resident_share
from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS = 256
READ_BYTES = 1 << 20
MOST_RESIDENT = 0.05
LEAST_SHARE = 0.4


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    read, fetch = [], []
    with tempfile.TemporaryDirectory(prefix="kvcairn-cold-") as directory:
        data = Path(directory)
        with running_service("--capacity", "2GiB", data=data) as service, Client(service.url) as client:
            prefix.store(client)
        for _ in range(rounds + 1):
            file = data / "data.mdb"
            drop(file)
            read.append(timed(lambda: _read(file, prefix.buffer)))  # noqa: B023 - called at once
            drop(file)
            fetch.append(_first_fetch(prefix, data, most_resident=1.0 if tiny else MOST_RESIDENT))
    ours, limit = Timing(tuple(fetch[1:])), Timing(tuple(read[1:]))
    return [
        share("V4-Flash prefix, not in the page cache: first fetch, verified / sequential read of the data file",
              ours, "sequential read", limit, size_bytes=prefix.payload_bytes, at_least=LEAST_SHARE)
    ]  # fmt: skip


def _first_fetch(prefix: Prefix, data: Path, *, most_resident: float) -> float:
    with running_service("--capacity", "2GiB", data=data) as service, Client(service.url) as client:
        client.lookup(prefix.layout, prefix.keys)
        drop(data / "data.mdb")
        resident = resident_share(data / "data.mdb")
        assert resident <= most_resident, f"{resident:.0%} of the data file is in memory before the first fetch"
        return timed(lambda: prefix.read(client))


def _read(path: Path, buffer: memoryview) -> None:
    """Read the start of the file, as many bytes as the buffer has or the file."""
    with path.open("rb", buffering=0) as file:
        at = 0
        while at < len(buffer) and (read := file.readinto(buffer[at : at + READ_BYTES])):
            at += read
