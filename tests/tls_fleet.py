"""A service with mutual TLS for tests, on certificates of its own, and clients that do or do not get in."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import trustme

from certificates import Files, write, write_ca
from serving import ServiceProcess, running_service

ADMIN = "admin-secret-token"
NAME = "127.0.0.1"
CONNECTIONS = 8


class Fleet:
    """Two authorities, the files of one service and of three clients, and the service with mutual TLS on them."""

    service: ServiceProcess

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours, theirs = trustme.CA(), trustme.CA()
        self.ca = write_ca(self.ours, directory / "ca.crt")
        self.server = write(self.ours, directory, NAME)
        self.client = write(self.ours, directory, "engine")
        self.stranger = write(theirs, directory, "stranger")
        self.expired = write(self.ours, directory, "expired", valid_days=-10)

    @property
    def port(self) -> int:
        return int(self.service.url.rsplit(":", 1)[1])

    def context(self, shown: Files | None = None) -> ssl.SSLContext:
        """A client's context that trusts the service, and shows these files."""
        context = ssl.create_default_context(cafile=self.ca)
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context

    def http(self, shown: Files | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        return httpx.Client(
            base_url=self.service.url, verify=self.context(shown), headers=headers, trust_env=False, timeout=20
        )

    def connect(self, shown: Files | None = None, *, buffer_bytes: int | None = None) -> ssl.SSLSocket:
        sock = socket.socket()
        sock.settimeout(30)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.connect((NAME, self.port))
        return self.context(shown).wrap_socket(sock, server_hostname=NAME)


@contextlib.contextmanager
def running_fleet(directory: Path) -> Iterator[Fleet]:
    """Its service listens on a Unix socket as well, and is quick to cut whoever does nothing."""
    fleet = Fleet(directory)
    files = {"--tls-cert": fleet.server.cert, "--tls-key": fleet.server.key, "--tls-client-ca": fleet.ca}
    flags = [str(word) for pair in files.items() for word in pair]
    env = {
        "KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_STALL_SECONDS": "2", "KVCAIRN_HEADER_SECONDS": "2",
        "KVCAIRN_MAX_CONNECTIONS": str(CONNECTIONS), "KVCAIRN_UDS": str(directory / "s"),
    }  # fmt: skip
    with running_service(directory / "data", *flags, "--capacity", "512MiB", env=env) as fleet.service:
        yield fleet
