"""How many lines of one sort a log may take: strangers choose how often they fail, not what that costs. Pure."""

from dataclasses import dataclass

LINES_PER_SECOND = 10.0
BURST_LINES = 50.0


@dataclass(slots=True)
class Flood:
    """Ten lines a second on average, fifty at once. Moments are seconds on one clock; for one thread."""

    _credit_lines: float = BURST_LINES
    _at: float = 0.0
    _left_out: int = 0

    def admits(self, now: float) -> int | None:
        """Whether a line may be written now: how many were left out since the last one, or None where it may not."""
        self._credit_lines = min(BURST_LINES, self._credit_lines + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._credit_lines < 1:
            self._left_out += 1
            return None
        self._credit_lines -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
