"""The limit: the same bytes through a bare loopback socket, sendall to recv_into, from another process."""

import contextlib
import multiprocessing
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

PIECE_BYTES = 2 << 20
BUFFER_BYTES = 4 << 20


class RawSender:
    """Another process that sends `total` bytes whenever it is asked to; `receive` fills a buffer with them."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)

    def receive(self, buffer: memoryview) -> None:
        """Ask for len(buffer) bytes and read them all, piece by piece, straight into `buffer`."""
        self._socket.sendall(len(buffer).to_bytes(8, "little"))
        at = 0
        while at < len(buffer):
            read = self._socket.recv_into(buffer[at : at + PIECE_BYTES])
            if not read:
                raise ConnectionError("the raw sender went away")
            at += read

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def raw_sender() -> Iterator[RawSender]:
    """Start the sending process and connect to it."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_send, args=(theirs,), daemon=True)
    process.start()
    sender = RawSender(ours.recv())
    try:
        yield sender
    finally:
        sender.close()
        process.join(timeout=10)


def _send(pipe: Connection) -> None:
    piece = memoryview(bytearray(b"\x5a" * PIECE_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[:2])
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            while asked := connection.recv(8, socket.MSG_WAITALL):
                left = int.from_bytes(asked, "little")
                while left:
                    connection.sendall(piece[: min(left, PIECE_BYTES)])
                    left -= min(left, PIECE_BYTES)
