"""Services that start in a tenth of a second: forked from a process that has imported everything already.

    with spawning(log_directory) as spawner:
        service = spawner.start("--data", str(data), "--uds", str(sock), "--host", "none")

Most of a service's start is Python reading modules, and a kill in it teaches nothing. A forked service is a process
group of its own, opens the directory by itself and is ended like any other. What must be measured is started with
serving.py instead, since a fork shares its parent's memory.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serving import ServiceProcess, service_environment

PROGRAM = Path(__file__).with_name("forking_process.py")


class Spawned(ServiceProcess):
    """A service of a spawner's. `url` and `uds_url` are known once `wait_until_listening` has returned."""

    def __init__(self, spawner: "Spawner", pid: int, log_path: Path) -> None:
        self._spawner = spawner
        self._pid = pid
        self._status: int | None = None
        self._log_path = log_path
        self.url = self.uds_url = ""

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        """As Popen's: None while it runs, minus the signal's number where one ended it."""
        if self._status is None:
            self._status = self._spawner.ask(poll=self._pid)
        return self._status

    def kill(self) -> None:
        """SIGKILL to the whole process group, and wait."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def wait(self, timeout_seconds: float = 60.0) -> int:
        deadline = time.monotonic() + timeout_seconds
        while (status := self.returncode) is None:
            assert time.monotonic() < deadline, f"the service goes on after {timeout_seconds} s:\n{self.log()}"
            time.sleep(0.002)
        return status

    def _end(self, number: signal.Signals) -> int:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, number)
        return self.wait()


class Spawner:
    """The process that forks. To be used from one thread."""

    def __init__(self, log_directory: Path, env: Mapping[str, str] | None = None) -> None:
        self._log_directory = log_directory
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM], env=service_environment(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, *flags: str) -> Spawned:
        """Fork a `kvcairn serve` with these flags; returns at once."""
        log_path = self._log_directory / f"{time.monotonic_ns()}.log"
        log_path.touch()
        return Spawned(self, self.ask(serve=flags, log=str(log_path)), log_path)

    def ask(self, **order: Any) -> Any:
        """One order and its answer, a line of JSON each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process; whatever it forked and nobody ended goes with it."""
        self._process.communicate()


@contextlib.contextmanager
def spawning(log_directory: Path, env: Mapping[str, str] | None = None) -> Iterator[Spawner]:
    spawner = Spawner(log_directory, env)
    try:
        assert spawner.ask(ready=True)
        yield spawner
    finally:
        spawner.close()
