"""How slow a peer may be: a bound on how long it keeps the service waiting, which grows with what it moves. Pure."""

from kvcairn_service.settings import Settings


class Pace:
    """One body's credit of waiting time: drained by waiting, filled by the bytes that moved, never beyond the start.

    A peer that moves nothing has `stall_seconds`; one that trickles has little more, since each byte earns the time
    that it takes at `bytes_per_second`. So n bytes are waited for stall_seconds + n / bytes_per_second at most. To be
    used by one task alone.
    """

    def __init__(self, *, stall_seconds: float, bytes_per_second: int) -> None:
        self.stall_seconds = stall_seconds
        self.bytes_per_second = bytes_per_second
        self.left_seconds = stall_seconds

    def note(self, *, waited_seconds: float, moved_bytes: int) -> None:
        """Take in one wait, and what it brought."""
        earned_seconds = moved_bytes / self.bytes_per_second
        self.left_seconds = min(self.stall_seconds, self.left_seconds - waited_seconds + earned_seconds)

    @property
    def is_over(self) -> bool:
        return self.left_seconds <= 0

    def __str__(self) -> str:
        return f"less than {self.bytes_per_second} bytes a second for {self.stall_seconds:g} s"


def pace_of(settings: Settings) -> Pace:
    """A fresh credit for one body."""
    return Pace(stall_seconds=settings.stall_seconds, bytes_per_second=settings.min_bytes_per_second)
