"""Making a connection: name, socket and TLS, all of it inside one bounded time."""

import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvcairn_client.address import Address
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import ServiceUnreachable
from kvcairn_client.tls import Contexts
from kvcairn_client.wire import Wire

UNIX_SEND_BYTES = 4 << 20
"""A Unix socket holds as much as its sender may buffer; with the default, stores lose a third of their rate."""


class _Candidate(NamedTuple):
    family: int
    sockaddr: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to connect and how. connect_seconds: the most that one connection may take. tls: the contexts for https."""

    address: Address
    connect_seconds: float
    tls: Contexts | None = None

    def connect(self, deadline: Deadline) -> Wire:
        """A wire to the service; ServiceUnreachable or BudgetExceeded where there is none. It is not armed yet."""
        deadline = deadline.within(self.connect_seconds, budget="connect_seconds")
        wire = Wire(_connect_first(_candidates(self.address, deadline), deadline, str(self.address)))
        if self.tls is not None and self.address.tls:
            wire.arm(deadline)
            _start_tls(wire, self.tls(), self.address.host)
        return wire


def _start_tls(wire: Wire, tls: ssl.SSLContext, server_name: str) -> None:
    try:
        wire.start_tls(tls, server_name)
    except BaseException:
        wire.close()
        raise


def _candidates(address: Address, deadline: Deadline) -> list[_Candidate]:
    if address.socket_path is not None:
        return [_Candidate(socket.AF_UNIX, address.socket_path)]
    return resolve(address.host, address.port, deadline)


def resolve(host: str, port: int, deadline: Deadline) -> list[_Candidate]:
    """The addresses of a name, in the order to be tried.

    In a thread of its own, because the system's resolver takes no timeout: a dead name server would otherwise hold the
    engine for half a minute. The thread is left behind where the time runs out; it ends when the resolver does.
    """
    found: list[_Candidate] = []
    failed: list[OSError] = []

    def look_up() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(_Candidate(family, sockaddr) for family, _, _, _, sockaddr in answers)
        except (OSError, UnicodeError) as error:
            failed.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=look_up, name="kvcairn-resolve", daemon=True)
    thread.start()
    thread.join(deadline.remaining_seconds())
    if failed:
        raise ServiceUnreachable(f"the name {host!r} could not be resolved: {failed[0]}")
    if thread.is_alive():
        raise deadline.exceeded()
    return list(found)


def _connect_first(candidates: list[_Candidate], deadline: Deadline, name: str) -> socket.socket:
    """The first candidate that answers; each may take its even share of the time that is left."""
    problem: OSError | None = None
    for index, candidate in enumerate(candidates):
        try:
            return _connect_one(candidate, deadline.remaining_seconds() / (len(candidates) - index))
        except OSError as error:
            problem = error
    if isinstance(problem, TimeoutError):
        raise deadline.exceeded()
    raise ServiceUnreachable(f"no connection to {name}: {problem or 'the name has no address'}") from problem


def _connect_one(candidate: _Candidate, timeout_seconds: float) -> socket.socket:
    sock = socket.socket(candidate.family, socket.SOCK_STREAM)
    try:
        if candidate.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
        else:
            # TCP's buffers are left to the kernel, which grows them further than a fixed size may go.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(timeout_seconds)
        sock.connect(candidate.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock
