"""A faulty network between a client and a real service: a proxy over TCP or Unix sockets that spoils on purpose.

with FaultyLink(service.url, drawn(seed, reach_bytes=1 << 20)) as link:
    Client(link.url)
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from kvcairn_client.faults import HangUp, Pause
from link_faults import HalfClose, LinkFault, LinkStep, Reset, Way, steps

READ_BYTES = 64 << 10
AT_ONCE = struct.pack("ii", 1, 0)
"""A linger of zero seconds: closing sends a RST."""


class FaultyLink:
    """Listens beside the service, and passes each connection on with the next fault of `faults`; none when they end.

    target: the service's URL, `http://host:port` or `unix:path`. socket_path: listen there rather than on a port.
    seen: the faults of the connections so far. To be used as a context manager; its end cuts what is still open.
    """

    def __init__(self, target: str, faults: Iterator[LinkFault], *, socket_path: Path | None = None) -> None:
        self._target = target
        self._faults = faults
        self._is_over = threading.Event()
        self._conversations: list[_Conversation] = []
        self.seen: list[LinkFault | None] = []
        self._listener = _listening(socket_path)
        self.url = f"unix:{socket_path}" if socket_path else "http://{}:{}".format(*self._listener.getsockname())
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for each in self._conversations:
            each.end()

    def _accept(self) -> None:
        while not self._is_over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            fault = next(self._faults, None)
            self.seen.append(fault)
            self._conversations.append(_Conversation(client, _connected(self._target), fault, self._is_over))


class _Conversation:
    """One connection of a client, the one to the service that stands for it, and a thread for each way."""

    def __init__(
        self, client: socket.socket, service: socket.socket, fault: LinkFault | None, is_over: threading.Event
    ) -> None:
        self._sockets = (client, service)
        self._fault = fault
        self._is_over = is_over
        self._is_reset = False
        self._left = 2
        self._lock = threading.Lock()
        ways = ((client, service, Way.UP), (service, client, Way.DOWN))
        self._threads = [threading.Thread(target=self._carry, args=each, daemon=True) for each in ways]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._wake()
        for thread in self._threads:
            thread.join()

    def _carry(self, source: socket.socket, target: socket.socket, way: Way) -> None:
        at = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(READ_BYTES):
                fault = self._fault
                whole: Iterator[LinkStep] = iter([piece])
                if not self._done(steps(fault, at, piece) if fault and fault.way is way else whole, target):
                    break
                at += len(piece)
        if not self._is_reset:  # else the peer would be told of an ordinary end first
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        self._leave()

    def _done(self, todo: Iterator[LinkStep], target: socket.socket) -> bool:
        """Act on the steps; whether this way goes on."""
        for step in todo:
            if isinstance(step, bytes):
                target.sendall(step)
            elif isinstance(step, Pause):
                if self._is_over.wait(step.seconds):
                    return False
            else:
                self._stop(step)
                return False
        return True

    def _stop(self, step: HangUp | Reset | HalfClose) -> None:
        if isinstance(step, Reset):
            self._is_reset = True
            for each in self._sockets:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        if not isinstance(step, HalfClose):
            self._wake(socket.SHUT_RD if isinstance(step, Reset) else socket.SHUT_RDWR)

    def _wake(self, how: int = socket.SHUT_RDWR) -> None:
        """A thread that reads from a socket is not told that it was closed, but that it was shut down."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(how)

    def _leave(self) -> None:
        """The last thread closes."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                for each in self._sockets:
                    each.close()


def _listening(path: Path | None) -> socket.socket:
    if path is None:
        return socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def _connected(url: str) -> socket.socket:
    if url.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(url.removeprefix("unix:"))
        return sock
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))
