"""Other stores to measure beside: a Redis and a memcached of our own, on a loopback port and a Unix socket.

Debian's packages, started with nothing written to disk, and ended with the benchmark.
"""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

PACKAGES = {"redis-server": "redis-server", "memcached": "memcached"}
START_SECONDS = 10.0


class Place(NamedTuple):
    """Where a peer listens: a port of 127.0.0.1, and a Unix socket."""

    port: int
    path: str


class MissingProgram(RuntimeError):
    """A peer is not installed; the message names the Debian package."""


def is_installed(program: str) -> bool:
    return shutil.which(program) is not None


def require(*programs: str) -> None:
    """MissingProgram, naming what to install, unless all are there."""
    missing = [program for program in programs if not is_installed(program)]
    if missing:
        packages = " ".join(PACKAGES[program] for program in missing)
        raise MissingProgram(f"not installed: {', '.join(missing)}; on Debian: apt-get install {packages}")


@contextlib.contextmanager
def redis_server() -> Iterator[Place]:
    """A Redis that keeps all in memory: no snapshot, no log."""
    require("redis-server")
    with _directory() as directory:
        place = Place(_free_port(), f"{directory}/redis.sock")
        flags = ("--save", "", "--appendonly", "no", "--dir", directory)
        where = ("--bind", "127.0.0.1", "--port", str(place.port), "--unixsocket", place.path)
        with _running("redis-server", *where, *flags, place=place):
            yield place


@contextlib.contextmanager
def memcached(*, megabytes: int, over: str) -> Iterator[Place]:
    """A memcached that takes items of up to 8 MB. over: "tcp" or "unix"; it listens on one of the two alone."""
    require("memcached")
    with _directory() as directory:
        place = Place(_free_port() if over == "tcp" else 0, f"{directory}/memcached.sock")
        where = ("-l", "127.0.0.1", "-p", str(place.port), "-U", "0") if place.port else ("-s", place.path)
        with _running("memcached", *where, "-m", str(megabytes), "-I", "8m", "-t", "2", "-u", "root", place=place):
            yield place


def _directory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="kvcairn-peer-")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def _running(program: str, *flags: str, place: Place) -> Iterator[None]:
    process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_listening(process, program, place)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_until_listening(process: "subprocess.Popen[bytes]", program: str, place: Place) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            _connect(place).close()
            return
        time.sleep(0.02)
    raise RuntimeError(f"{program} did not listen within {START_SECONDS:g} s (exit status {process.poll()})")


def _connect(place: Place) -> socket.socket:
    if place.port:
        return socket.create_connection(("127.0.0.1", place.port), timeout=1)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(place.path)
    return sock
