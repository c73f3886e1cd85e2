"""Hold: records that a reader relies on for a while."""

from collections.abc import Callable

from kvcairn_storage.store import Entry


class Hold:
    """Records that are not evicted nor expired until this is released; a context manager.

    entries: what was there, in the order asked, None for what was not. A record that is deleted, dropped or
    quarantined meanwhile is a miss all the same: its reader asked for bytes that its owner wants gone.
    """

    def __init__(self, entries: list[Entry | None], release: Callable[[], None]) -> None:
        self.entries = entries
        self._release = release

    def release(self) -> None:
        """Let go; a second call does nothing."""
        self._release()

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
