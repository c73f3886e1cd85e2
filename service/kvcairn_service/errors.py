"""What the service refuses, one class each; problems.py holds the one table of statuses.

KvcairnError
├── SettingsError          the service cannot start as asked; ends the process with status 2
└── ServiceError           a request cannot be answered as asked
    ├── Malformed          not what HTTP or JSON allows
    ├── Unauthenticated    no token, or one that is not known (any more)
    ├── Forbidden          a known caller, but not for this
    ├── NotFound           there is nothing of that name
    ├── LayoutUnknown      the tenant has not registered this layout
    ├── InUse              what was asked contradicts what must stay as it is
    ├── TooLarge           over a limit that a retry will meet again
    ├── WrongType          a content type that this endpoint does not read
    ├── RuleBroken         well formed, but against a rule; the message names the field
    ├── TooMany            a bound on how much at once; worth a retry later
    ├── NoSpace            no room now; worth a retry later
    ├── Unavailable        starting or draining; worth a retry elsewhere, or later
    ├── BodyTimeout        the request's body came too slowly
    └── Disconnected       the client went away; nobody reads the answer
"""

from collections.abc import Mapping
from typing import Any

from kvcairn_protocol.errors import KvcairnError


class SettingsError(KvcairnError):
    """A setting is unknown, malformed or unsafe; the message names it and what would be right."""


class ServiceError(KvcairnError):
    """The root of every refusal. `members` are added to the problem document that answers it."""

    retry_after_seconds: int | None = None

    def __init__(self, message: str, *, members: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.members = dict(members or {})


class Malformed(ServiceError):
    """The bytes are not what HTTP, JSON or the record stream allows."""


class Unauthenticated(ServiceError):
    """A token is needed, and none that is valid came."""


class Forbidden(ServiceError):
    """The caller is known, and may not do this."""


class NotFound(ServiceError):
    """Nothing of that name is here for this caller."""


class LayoutUnknown(ServiceError):
    """The layout must be registered before records of it can be named."""


class InUse(ServiceError):
    """What was asked would remove what must stay."""


class TooLarge(ServiceError):
    """Over a limit; the same request will never fit."""


class WrongType(ServiceError):
    """The content type is not one that this endpoint reads."""


class RuleBroken(ServiceError):
    """Well formed, but against a rule of the API; the message names field and rule."""


class TooMany(ServiceError):
    """More at once than the service allows; a retry later may pass."""

    retry_after_seconds = 1


class NoSpace(ServiceError):
    """Nothing may be evicted for this now; a retry later may pass."""

    retry_after_seconds = 5


class Unavailable(ServiceError):
    """The service is starting or draining."""

    retry_after_seconds = 2


class BodyTimeout(ServiceError):
    """The body came too slowly, or not at all."""


class Disconnected(ServiceError):
    """The client closed the connection before its request was complete."""
