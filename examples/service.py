"""A service process of its own, on a free loopback port and a Unix socket, for the demo and the benchmarks."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LISTENS = re.compile(r"listening on (http://\S+)")


@dataclass(frozen=True, slots=True)
class Running:
    """A service that listens on `url` and on `unix_url`, with its data in the directory `data`."""

    url: str
    unix_url: str
    data: Path
    process: "subprocess.Popen[str]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_service(*flags: str, data: Path | None = None, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start `kvcairn serve` on the directory `data`, or on a new one that is removed at the end; stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="kvcairn-") as directory:
        data = data or Path(directory, "data")
        sock = Path(directory, "kvcairn.sock")
        places = ("--data", str(data), "--port", "0", "--uds", str(sock))
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcairn_service", "serve", *places, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | dict(env or {}),
        )  # fmt: skip
        try:
            yield Running(_wait_until_listening(process), f"unix:{sock}", data, process)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_listening(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found := LISTENS.search(line):
            threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the service
            return found.group(1)
    raise RuntimeError("the service did not start:\n" + "".join(seen))
