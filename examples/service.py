"""A service process of its own, on a temporary directory and a free loopback port, for the demo and the benchmarks."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LISTENS = re.compile(r"listening on (http://\S+)")


@dataclass(frozen=True, slots=True)
class Running:
    """A service that listens on `url`."""

    url: str
    process: "subprocess.Popen[str]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_service(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start `kvcairn serve`; stop it, and remove its data, at the end."""
    with tempfile.TemporaryDirectory(prefix="kvcairn-") as data:
        command = [sys.executable, "-m", "kvcairn_service", "serve", "--data", data, "--port", "0", *flags]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | dict(env or {})
        )
        try:
            yield Running(_wait_until_listening(process), process)
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
