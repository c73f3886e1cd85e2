"""The real one: a 131,072-token V4-Flash prefix (504.7 MB and one state), fetched and verified, beside a raw socket."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Figure, interleave
from benchmarks.memory import peak_private_bytes
from benchmarks.prefixes import Prefix
from benchmarks.raw_socket import raw_sender
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS = 256
LEAST_SHARE = 0.7
SERVICE_BYTES = 300e6
CLIENT_EXTRA_BYTES = 64 << 20


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    with running_service("--capacity", "8GiB") as service, Client(service.url) as client, raw_sender() as sender:
        client.register(prefix.layout)
        prefix.store(client)
        with peak_private_bytes(service.pid) as peak:
            timings = interleave(
                {"raw": lambda: sender.receive(prefix.buffer), "fetch": lambda: prefix.fetch(client)}, rounds=rounds
            )
        extra_bytes = _client_extra_bytes(service.url, prefix.blocks)
    raw, fetch = timings["raw"], timings["fetch"]
    gigabytes = prefix.payload_bytes / 1e9
    detail = f"{gigabytes:.3f} GB in {fetch.median:.3f} s ({gigabytes / fetch.median:.2f} GB/s, {fetch.spread} s)"
    return [
        Figure("V4-Flash prefix: fetch, verified / raw socket", raw.median / fetch.median, "×", detail,
               at_least=LEAST_SHARE),
        Figure("service memory meanwhile, private", peak[0] / 1e6, "MB", "anonymous, without the map",
               at_most=SERVICE_BYTES / 1e6),
        Figure("client memory beyond its buffer", extra_bytes / 1e6, "MB", "peak of a process that fetches once",
               at_most=CLIENT_EXTRA_BYTES / 1e6),
    ]  # fmt: skip


def _client_extra_bytes(url: str, blocks: int) -> int:
    """What a client process of its own needs on top of its buffer: its peak, less the same process before the fetch."""
    command = [sys.executable, "-m", "benchmarks.fetch_once", url, str(blocks)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return int(json.loads(done.stdout)["extra_bytes"])
