"""A real service process for tests: `with running_service(tmp_path) as service: service.url`.

The process is `python -m kvcairn_service serve`; it is ended, and waited for, when the block ends.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = os.pathsep.join(str(ROOT / part) for part in ("protocol", "storage", "service", "client"))
START_SECONDS = 60.0
STOP_SECONDS = 60.0

LISTENING = re.compile(r"listening on (\S+)(?: and (\S+))?")


class ServiceProcess:
    """One `kvcairn serve`. url: where it listens (the TCP address if there is one). log(): all it has printed."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_path: Path) -> None:
        self._process = process
        self._log_path = log_path
        self.url = ""
        self.uds_url = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def http(self, *, token: str | None = None, timeout_seconds: float = 30.0) -> httpx.Client:
        """An httpx client for it; over the Unix socket where that is all there is."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if not self.url:
            transport = httpx.HTTPTransport(uds=self.uds_url.removeprefix("unix:"))
            return httpx.Client(transport=transport, base_url="http://localhost", headers=headers)
        transport = httpx.HTTPTransport(verify=False)
        return httpx.Client(
            transport=transport, base_url=self.url, headers=headers, timeout=timeout_seconds, trust_env=False
        )

    def wait_until_listening(self) -> None:
        """Return once the line with the address is printed; AssertionError with the log if it never is."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            found = LISTENING.search(self.log())
            if found:
                places = [place for place in found.groups() if place]
                self.url = next((place for place in places if place.startswith("http")), "")
                self.uds_url = next((place for place in places if place.startswith("unix:")), "")
                return
            assert self.returncode is None, f"the service ended with {self.returncode}:\n{self.log()}"
            time.sleep(0.02)
        raise AssertionError(f"the service does not listen after {START_SECONDS} s:\n{self.log()}")

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def hang_up(self) -> None:
        """SIGHUP: files are read again."""
        self._process.send_signal(signal.SIGHUP)

    def terminate(self) -> int:
        """SIGTERM, wait, and return the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def wait(self, timeout_seconds: float = STOP_SECONDS) -> int:
        return self._process.wait(timeout_seconds)


def service_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without its own KVCAIRN_* settings, with `env` on top."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVCAIRN_")}
    path = os.pathsep.join(part for part in (PACKAGES, kept.get("PYTHONPATH")) if part)
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})}


def start_service(data_dir: Path, *args: str, env: Mapping[str, str] | None = None) -> ServiceProcess:
    """Start `kvcairn serve` on `data_dir` and a free port; the caller ends it. Further flags in `args` win."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir.parent / f"{data_dir.name}.{time.monotonic_ns()}.log"
    flags = ["--data", str(data_dir)]
    flags += [] if "--port" in args else ["--port", "0"]
    flags += [] if "--capacity" in args or "KVCAIRN_CAPACITY" in (env or {}) else ["--capacity", "256MiB"]
    command = [sys.executable, "-m", "kvcairn_service", "serve", *flags, *args]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=service_environment(env), stdout=log, stderr=subprocess.STDOUT)
    return ServiceProcess(process, log_path)


@contextlib.contextmanager
def running_service(data_dir: Path, *args: str, env: Mapping[str, str] | None = None) -> Iterator[ServiceProcess]:
    """A service that listens; ended with SIGTERM at the end, with SIGKILL if that does not help."""
    service = start_service(data_dir, *args, env=env)
    try:
        service.wait_until_listening()
        yield service
    finally:
        if service.returncode is None:
            try:
                service.terminate()
            except subprocess.TimeoutExpired:
                service.kill()
