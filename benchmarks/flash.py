"""The real one: a 131,072-token V4-Flash prefix (504.7 MB and one state), fetched and verified, beside a raw socket."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import Figure, interleave, share
from benchmarks.memory import peak_private_bytes
from benchmarks.prefixes import Prefix
from benchmarks.raw_socket import raw_peer
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS = 256
LEAST_SHARE_TCP, LEAST_SHARE_UNIX = 0.9, 0.83
SERVICE_BYTES = 300e6
CLIENT_EXTRA_BYTES = 64 << 20


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    size_bytes = prefix.payload_bytes
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "2GiB"))
        tcp, unix = (stack.enter_context(Client(url)) for url in (service.url, service.unix_url))
        raw_tcp, raw_unix = (stack.enter_context(raw_peer(over, size_bytes=size_bytes)) for over in ("tcp", "unix"))
        prefix.store(tcp)
        with peak_private_bytes(service.pid) as peak:
            timings = interleave(
                {
                    "raw tcp": lambda: raw_tcp.receive(prefix.buffer),
                    "tcp": lambda: prefix.read(tcp),
                    "raw unix": lambda: raw_unix.receive(prefix.buffer),
                    "unix": lambda: prefix.read(unix),
                },
                rounds=rounds,
            )
        extra_bytes = _client_extra_bytes(service.url, prefix.blocks)
    return [
        share("V4-Flash prefix, TCP: fetch, verified / raw socket", timings["tcp"], "raw", timings["raw tcp"],
              size_bytes=size_bytes, at_least=LEAST_SHARE_TCP),
        share("V4-Flash prefix, Unix socket: fetch, verified / raw socket", timings["unix"], "raw", timings["raw unix"],
              size_bytes=size_bytes, at_least=LEAST_SHARE_UNIX),
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
