"""The limit: the same number of bytes through a bare socket, sendall to recv_into, between two processes.

Both ways, over loopback TCP or a Unix socket, with the socket buffers that the service sets. The bytes come from and
go to a buffer as large as all of them, as those of a prefix do; nothing is parsed and nothing is verified.
"""

import contextlib
import multiprocessing
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

Over = Literal["tcp", "unix"]

PIECE_BYTES = 2 << 20
BUFFER_BYTES = 4 << 20
SEND, TAKE = b"S", b"T"


class RawPeer:
    """Another process at the end of a bare socket, which has a buffer of `size_bytes` of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        _enlarge(sock)

    def receive(self, buffer: memoryview) -> None:
        """Have the other process send len(buffer) bytes, and read them all into `buffer`."""
        self._socket.sendall(SEND + len(buffer).to_bytes(8, "little"))
        _receive(self._socket, buffer)

    def send(self, buffer: memoryview) -> None:
        """Send all of `buffer`; returns once the other process has received it."""
        self._socket.sendall(TAKE + len(buffer).to_bytes(8, "little"))
        _send(self._socket, buffer)
        self._socket.recv(1, socket.MSG_WAITALL)


@contextlib.contextmanager
def raw_peer(over: Over = "tcp", *, size_bytes: int) -> Iterator[RawPeer]:
    """Start the other process and connect to it; it can send or take up to `size_bytes` at a time."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="kvcairn-raw-") as directory, _listen(over, Path(directory)) as server:
        process = spawn.Process(target=_serve, args=(server, size_bytes), daemon=True)
        process.start()
        with socket.socket(server.family) as sock:
            sock.connect(server.getsockname())
            yield RawPeer(sock)
        process.join(timeout=10)


def _listen(over: Over, directory: Path) -> socket.socket:
    if over == "tcp":
        return socket.create_server(("127.0.0.1", 0))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(directory / "raw.sock"))
    server.listen(1)
    return server


def _serve(server: socket.socket, size_bytes: int) -> None:
    buffer = np.full(size_bytes, 0x5A, np.uint8).data
    with server, server.accept()[0] as sock:
        _enlarge(sock)
        while order := sock.recv(9, socket.MSG_WAITALL):
            asked = buffer[: int.from_bytes(order[1:], "little")]
            if order[:1] == SEND:
                _send(sock, asked)
            else:
                _receive(sock, asked)
                sock.sendall(b"\0")


def _enlarge(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def _send(sock: socket.socket, buffer: memoryview) -> None:
    for at in range(0, len(buffer), PIECE_BYTES):
        sock.sendall(buffer[at : at + PIECE_BYTES])


def _receive(sock: socket.socket, buffer: memoryview) -> None:
    at = 0
    while at < len(buffer):
        read = sock.recv_into(buffer[at : at + PIECE_BYTES])
        if not read:
            raise ConnectionError("the process at the other end went away")
        at += read
