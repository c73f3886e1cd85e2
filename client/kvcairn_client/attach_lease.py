"""Whether the service has vouched for this client lately: only then are its records read past it."""

import time
from collections.abc import Callable

from kvcairn_client.deadline import Clock, Deadline
from kvcairn_client.errors import BadAnswer, ClientError, ServiceUnreachable
from kvcairn_protocol.messages import ServiceInfo

LEASE_SECONDS = 2.0
"""How long a revoked token, a deleted tenant or a service that is gone can go unnoticed by an attached client."""

Ask = Callable[[Deadline], ServiceInfo]


class Lease:
    """The service's answer to an authenticated question, for as long as it counts. Thread-safe.

    One that did not give it is not asked again for as long: a fetch must not wait for it twice each time.
    """

    def __init__(self, ask: Ask, *, clock: Clock = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._granted: tuple[ServiceInfo, float] | None = None
        self._ask_from = clock()

    def service(self, deadline: Deadline) -> ServiceInfo:
        """Who serves this client, and which tenant it is; a ClientError where that is not known to be true now."""
        now, granted = self._clock(), self._granted
        if granted is not None and now < granted[1]:
            return granted[0]
        if now < self._ask_from:
            raise ServiceUnreachable("the service could not vouch for this client a moment ago")
        try:
            info = self._asked(deadline)
        except ClientError:
            self._ask_from = self._clock() + LEASE_SECONDS
            raise
        self._granted = info, now + LEASE_SECONDS
        return info

    def _asked(self, deadline: Deadline) -> ServiceInfo:
        info = self._ask(deadline)
        if info.tenant_id is None:
            raise BadAnswer(f"the service ({info.version}) does not say whose records a caller may read: it is too old")
        return info
