"""Pins over the API: a prefix that the service keeps from eviction until it is let go or its time is over."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

from kvcairn_client.control import Control
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import Refused
from kvcairn_client.registry import Registry
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import Pin, PinRequest, Pins


class Pinning:
    """Each verb is one request, which may be repeated. Thread-safe."""

    def __init__(self, control: Control, registry: Registry) -> None:
        self._control = control
        self._registry = registry

    def pin(
        self, layout: Layout, block_keys: Sequence[bytes], *, ttl_seconds: float, name: str | None, deadline: Deadline
    ) -> Pin:
        """As `Client.pin`."""
        asked = PinRequest(
            layout=layout.fingerprint.hex(), block_keys=[key.hex() for key in block_keys], ttl_seconds=ttl_seconds,
            name=name,
        )  # fmt: skip
        call = partial(self._control.ask, "POST", "/v1/prefixes:pin", Pin, deadline, content=asked)
        return self._registry.with_layout(layout, deadline, call)

    def pins(self, deadline: Deadline) -> Pins:
        """As `Client.pins`."""
        return self._control.ask("GET", "/v1/pins", Pins, deadline)

    def unpin(self, pin: Pin, deadline: Deadline) -> bool:
        """As `Client.unpin`."""
        try:
            self._control.call("DELETE", f"/v1/pins/{pin.id}", deadline)
        except Refused as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True
