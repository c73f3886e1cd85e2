"""The data plane's idle connections: taken by one call at a time, given back when their framing is beyond doubt."""

import threading

from kvcairn_client.connect import Endpoint
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import ClientError, ClosedClient
from kvcairn_client.wire import Wire

IDLE_CONNECTIONS = 4


class Connections:
    """Keeps up to `IDLE_CONNECTIONS` wires, the last used first. Thread-safe; connects outside its lock."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._idle: list[Wire] = []
        self._closed = False

    def take_idle(self) -> Wire | None:
        """An idle wire that still looks alive; None where there is none."""
        while (wire := self._pop()) is not None:
            if not _is_dead(wire):
                return wire
            wire.close()
        return None

    def connect(self, deadline: Deadline) -> Wire:
        """A new wire."""
        return self._endpoint.connect(deadline)

    def give_back(self, wire: Wire) -> None:
        """Keep a wire for the next call, or close it where enough are kept."""
        with self._lock:
            keep = not self._closed and len(self._idle) < IDLE_CONNECTIONS
            if keep:
                self._idle.append(wire)
        if not keep:
            wire.close()

    def close(self) -> None:
        """Close the idle wires; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def _pop(self) -> Wire | None:
        with self._lock:
            if self._closed:
                raise ClosedClient("the client is closed")
            return self._idle.pop() if self._idle else None


def _is_dead(wire: Wire) -> bool:
    try:
        return wire.is_readable()
    except ClientError:
        return True
