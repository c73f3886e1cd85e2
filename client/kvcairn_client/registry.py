"""What one client and its service have agreed on: the service's limits, and which layouts it knows."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from kvcairn_client.control import Control
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer, LayoutUnknown, Refused
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import ServiceInfo, ServiceLimits

API = 1

T = TypeVar("T")


class Registry:
    """Remembers what was agreed, and agrees anew after the service forgot. Thread-safe: every step may be repeated."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._info: ServiceInfo | None = None
        self._known: set[bytes] = set()

    def service(self, deadline: Deadline) -> ServiceInfo:
        """Ask the service who it is, and keep the answer; BadAnswer where it is none that this client understands."""
        info = self._control.ask("GET", "/v1/service", ServiceInfo, deadline)
        if info.api != API:
            raise BadAnswer(
                f"this client speaks version {API} of the API, the service {info.version!r} speaks {info.api}; "
                "install a client of the service's version"
            )
        if info.limits.keys_per_request < 1 or info.limits.body_bytes < 1:
            raise BadAnswer("the service's limits allow no request at all")
        self._info = info
        return info

    def limits(self, deadline: Deadline) -> ServiceLimits:
        """The service's limits, asked for once."""
        return (self._info or self.service(deadline)).limits

    def register(self, layout: Layout, deadline: Deadline) -> None:
        """Make the layout known to the service, unless this client did."""
        if layout.fingerprint not in self._known:
            self._control.call("PUT", f"/v1/layouts/{layout.fingerprint.hex()}", deadline, content=layout.canonical)
            self._known.add(layout.fingerprint)

    def forget(self, layout: Layout) -> None:
        """The service does not know the layout any more: it may be another one, with other limits."""
        self._known.discard(layout.fingerprint)
        self._info = None

    def with_layout(self, layout: Layout, deadline: Deadline, call: Callable[[], T]) -> T:
        """Run `call` with the layout registered, and once more where the service turns out to have forgotten it.

        A request that kept to the limits and is too large all the same means that they are others now: they are asked
        for again by the next call.
        """
        self.register(layout, deadline)
        try:
            return call()
        except LayoutUnknown:
            self.forget(layout)
            self.register(layout, deadline)
            return call()
        except Refused as refusal:
            if refusal.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._info = None
            raise
