"""One fetch in a process of its own; prints how far its peak memory rose above its buffer, as JSON."""

import json
import os
import sys

from benchmarks.machine import peak_resident_bytes
from benchmarks.prefixes import Prefix
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash


def main(url: str, blocks: int) -> None:
    prefix = Prefix(flash("benchmark"), blocks)
    _touch(prefix.buffer)
    with Client(url) as client:
        client.lookup(prefix.layout, prefix.keys)
        before = peak_resident_bytes(os.getpid())
        prefix.fetch(client)
        after = peak_resident_bytes(os.getpid())
    print(json.dumps({"extra_bytes": after - before}))


def _touch(buffer: memoryview) -> None:
    """Write one byte a page, so that the whole buffer counts before the fetch."""
    page = 4096
    buffer[::page] = b"\1" * len(buffer[::page])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
