"""Time budgets: every call has a total deadline, whatever the service does or does not send."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Seconds that each kind of call may take, from its first step to its return.

    connect_seconds: one connection, names resolved and TLS agreed, inside the call's own budget.
    control_seconds: any call that moves JSON alone. fetch_seconds, store_seconds: one `fetch` or `store`, however many
    requests it needs. restore_seconds: all that one restore asks for, its lookup, its fetches, and their reports of
    bad records, so that no prefill waits for longer than this in all. stall_seconds: the longest silence of a fetch; a
    store has none of its own, since a service rightly stops reading while its disk is behind.
    """

    connect_seconds: float = 0.5
    control_seconds: float = 2.0
    fetch_seconds: float = 10.0
    store_seconds: float = 60.0
    restore_seconds: float = 12.0
    stall_seconds: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field.name} is a positive, finite number of seconds; found {value!r}")
