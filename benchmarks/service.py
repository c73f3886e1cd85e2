"""A service process of its own, on a temporary directory, for as long as a benchmark runs."""

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.machine import private_bytes

LISTENS = re.compile(r"listening on (http://\S+)")
SAMPLE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Service:
    url: str
    pid: int


@contextlib.contextmanager
def running_service(*flags: str, capacity: str = "8GiB") -> Iterator[Service]:
    """Start `kvcairn serve` on a free port; stop it, and remove its data, at the end."""
    with tempfile.TemporaryDirectory(prefix="kvcairn-bench-") as data:
        command = [sys.executable, "-m", "kvcairn_service", "serve", "--data", data, "--port", "0",
                   "--capacity", capacity, *flags]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            yield Service(_wait_until_listening(process), process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_listening(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found := LISTENS.search(line):
            threading.Thread(target=process.stdout.read, daemon=True).start()  # keeps the pipe from filling up
            return found.group(1)
    raise RuntimeError("the service did not start:\n" + "".join(seen))


@contextlib.contextmanager
def peak_private_bytes(pid: int) -> Iterator[list[int]]:
    """Sample the private memory of a process meanwhile; the list holds the highest value seen."""
    peak, stop = [private_bytes(pid)], threading.Event()

    def sample() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], private_bytes(pid))
            time.sleep(SAMPLE_SECONDS)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
