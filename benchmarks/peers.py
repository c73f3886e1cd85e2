"""Other stores beside ours: Redis, memcached and plain files, with the same records and the same kind of connection.

The same job for all: each payload at its place in one buffer. Ours is verified, theirs is not unless it says so. The
targets are for each client as pip installs it. Faster set-ups of the same clients stand in rows of their own: redis-py
with hiredis as parser and reads of 4 MiB, pymemcache with reads of 1 MiB instead of the 4 KiB that a constant of its
module says. One GET a record, since both clients join the answers of many before they cut them up: MGET and pipelines
took two to four times as long.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import pymemcache.client.base
import xxhash
from pymemcache import Client as Memcache
from redis import ConnectionPool, Redis, UnixDomainSocketConnection
from redis._parsers import _RESP3Parser

from benchmarks.measure import Figure, Work, interleave, share
from benchmarks.peer_servers import PACKAGES, is_installed, memcached, redis_server, require
from benchmarks.prefixes import Prefix
from benchmarks.raw_socket import Over
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.deepseek_v4 import flash

BLOCKS = 256
AS_INSTALLED: dict[str, Any] = {"parser_class": _RESP3Parser}  # what redis-py takes where hiredis is not installed
FASTEST: dict[str, Any] = {"socket_read_size": 4 << 20}
SMALL_RECEIVE, LARGE_RECEIVE = 4096, 1 << 20
LEAST_TIMES_SERVERS, LEAST_TIMES_FILES = 2.0, 1.0

Get = Callable[[str], bytes]
Put = Callable[[str, bytes], object]


Ours = Over | Literal["attach"]


class Peer(NamedTuple):
    """One way to the same bytes. ours: which way of ours it is compared with; at_least None: no target."""

    work: Work
    ours: Ours
    at_least: float | None


def run(*, rounds: int, tiny: bool) -> list[Figure]:
    if not tiny:
        require(*PACKAGES)
    prefix = Prefix(flash("benchmark"), 2 if tiny else BLOCKS)
    with ExitStack() as stack:
        service = stack.enter_context(running_service("--capacity", "2GiB"))
        tcp, unix = (stack.enter_context(Client(url)) for url in (service.url, service.unix_url))
        attached = stack.enter_context(Client(service.unix_url, attach=service.data))
        prefix.store(tcp)
        peers = _redis(prefix, stack) | _memcached(prefix, stack) | _files(prefix, stack)
        ours: dict[str, Work] = {
            "tcp": lambda: prefix.read(tcp),
            "unix": lambda: prefix.read(unix),
            "attach": lambda: prefix.read(attached),
        }
        timings = interleave(ours | {name: peer.work for name, peer in peers.items()}, rounds=rounds)
    return [
        share(f"fetch, verified, {_words(peer.ours)} / {name}", timings[peer.ours], name, timings[name],
              size_bytes=prefix.payload_bytes, at_least=peer.at_least)
        for name, peer in peers.items()
    ]  # fmt: skip


def _words(ours: Ours) -> str:
    return {"tcp": "TCP", "unix": "Unix socket", "attach": "attached"}[ours]


def _redis(prefix: Prefix, stack: ExitStack) -> dict[str, Peer]:
    if not _is_there("redis-server"):
        return {}
    place = stack.enter_context(redis_server())
    tcp, unix = {"port": place.port}, {"path": place.path, "connection_class": UnixDomainSocketConnection}
    names = _fill(prefix, Redis(port=place.port).set)

    def peer(where: dict[str, Any], how: dict[str, Any], ours: Over, at_least: float | None) -> Peer:
        client = stack.enter_context(Redis(connection_pool=ConnectionPool(**where, **how)))
        return Peer(lambda: _copy_all(prefix, names, client.get), ours, at_least)

    return {
        "redis-py, TCP": peer(tcp, AS_INSTALLED, "tcp", LEAST_TIMES_SERVERS),
        "redis-py, Unix socket": peer(unix, AS_INSTALLED, "unix", LEAST_TIMES_SERVERS),
        "redis-py with hiredis, TCP": peer(tcp, FASTEST, "tcp", None),
        "redis-py with hiredis, Unix socket": peer(unix, FASTEST, "unix", None),
    }


def _memcached(prefix: Prefix, stack: ExitStack) -> dict[str, Peer]:
    if not _is_there("memcached"):
        return {}
    return _memcached_over("tcp", prefix, stack) | _memcached_over("unix", prefix, stack)


def _memcached_over(over: Over, prefix: Prefix, stack: ExitStack) -> dict[str, Peer]:
    megabytes = 64 + 2 * prefix.payload_bytes // 1_000_000
    place = stack.enter_context(memcached(megabytes=megabytes, over=over))
    client = Memcache(("127.0.0.1", place.port), no_delay=True) if place.port else Memcache(place.path)
    stack.callback(client.close)
    names = _fill(prefix, lambda name, payload: client.set(name, payload, noreply=False))

    def read(receive_bytes: int) -> None:
        pymemcache.client.base.RECV_SIZE = receive_bytes
        _copy_all(prefix, names, client.get)

    name = f"pymemcache, {_words(over)}"
    return {
        name: Peer(lambda: read(SMALL_RECEIVE), over, LEAST_TIMES_SERVERS),
        f"{name}, reads of 1 MiB": Peer(lambda: read(LARGE_RECEIVE), over, None),
    }


def _files(prefix: Prefix, stack: ExitStack) -> dict[str, Peer]:
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="kvcairn-files-")))
    names = _fill(prefix, lambda name, payload: directory.joinpath(name).write_bytes(payload))
    return {
        "files, read()": Peer(
            lambda: _copy_all(prefix, names, lambda name: directory.joinpath(name).read_bytes()),
            "unix", LEAST_TIMES_FILES,
        ),
        "files, read() and hashed": Peer(
            lambda: _copy_all(prefix, names, lambda name: _hashed(directory.joinpath(name).read_bytes())), "unix", None
        ),
        "files, readinto()": Peer(lambda: _read_files(prefix, directory, names), "attach", None),
    }  # fmt: skip


def _hashed(payload: bytes) -> bytes:
    xxhash.xxh3_128_digest(payload)
    return payload


def _is_there(program: str) -> bool:
    if not is_installed(program):
        print(f"{program} is not installed: its rows are left out", file=sys.stderr)
    return is_installed(program)


def _fill(prefix: Prefix, put: Put) -> list[str]:
    """Put every record's payload under a name; returns the names, in order."""
    names = [f"record-{index}" for index in range(prefix.blocks + 1)]
    for index, name in enumerate(names):
        put(name, prefix.payload(index))
    return names


def _copy_all(prefix: Prefix, names: Sequence[str], get: Get) -> None:
    for wanted, name in zip(prefix.wanted(), names, strict=True):
        wanted.target[:] = get(name)


def _read_files(prefix: Prefix, directory: Path, names: Sequence[str]) -> None:
    for wanted, name in zip(prefix.wanted(), names, strict=True):
        with directory.joinpath(name).open("rb", buffering=0) as file:
            assert file.readinto(wanted.target) == len(wanted.target)
