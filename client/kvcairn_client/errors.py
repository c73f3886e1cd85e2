"""What can go wrong between a client and its service, one class each.

    KvcairnError
    └── ClientError            `may_pass`: whether the same call can succeed later without anybody changing anything
        ├── ServiceUnreachable no connection, or it broke; a retry can help
        ├── BudgetExceeded     the call's time ran out; a retry can help
        ├── ServiceBusy        429, 503 or 507; a retry after `retry_after_seconds` can help
        ├── ServiceFailed      any other 5xx, the service's own error; a retry can help
        ├── Refused            4xx, the request is at fault; a retry cannot help, `problem` says why
        │   └── LayoutUnknown  409, the layout is not registered; the client registers it and retries by itself
        ├── Unauthorized       401 or 403, the token is missing, wrong or not enough; a retry cannot help
        ├── BadAnswer          an answer that is not of this API; a retry rarely helps
        ├── ClosedClient       the client was closed, or made in another process; a retry cannot help
        ├── ModelNotSupported  this model's cache cannot be restored byte for byte; a retry cannot help
        ├── PromptNotSupported this input is no single unpadded prompt; a retry cannot help
        └── PoolExhausted      every row of a pool is held by a session; closing one helps

Errors of sockets, TLS, http.client and httpcore are mapped to these at the border where each of them is called, in
wire.py, connect.py, exchange.py and deadline_transport.py; none of them reaches a caller.
"""

from typing import ClassVar

from kvcairn_protocol.errors import KvcairnError
from kvcairn_protocol.messages import Problem


class ClientError(KvcairnError):
    """The root of every error that the client raises on purpose."""

    may_pass: ClassVar[bool] = False


class ServiceUnreachable(ClientError):
    """No connection could be made, or it broke; a retry can help."""

    may_pass = True


class BudgetExceeded(ClientError):
    """The call's time ran out, or the service sent nothing for too long; a retry can help."""

    may_pass = True


class ServiceBusy(ClientError):
    """The service says not now (429, 503, 507); a retry after `retry_after_seconds`, where it named one, can help."""

    may_pass = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ServiceFailed(ClientError):
    """The service met an error of its own (another 5xx); a retry can help."""

    may_pass = True


class Refused(ClientError):
    """The service will not take this request (4xx); a retry cannot help. `problem`: its own words, if it sent any."""

    def __init__(self, message: str, *, status: int, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem


class LayoutUnknown(Refused):
    """The service does not know the layout (409); registering it helps, which the client does once by itself."""


class Unauthorized(ClientError):
    """The token is missing, unknown or not enough (401, 403); a retry with the same token cannot help."""


class BadAnswer(ClientError):
    """The answer is not one of this API: another program, another version, or bytes that went wrong on their way."""


class ClosedClient(ClientError):
    """The client was closed, or it was carried across a fork; make a new one in this process."""


class ModelNotSupported(ClientError):
    """The cache of this model, as it stands, cannot be restored byte for byte; the message says what is needed."""


class PromptNotSupported(ClientError, ValueError):
    """The input is not one prompt of at least one token, without padding; the message says what was found."""


class PoolExhausted(ClientError):
    """Every row of a pool is held by sessions; a retry can help once one of them is closed."""

    may_pass = True
