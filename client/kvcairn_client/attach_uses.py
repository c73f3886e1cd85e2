"""Telling the service what was read past it, so that it counts as used: now and then, and in the background."""

import logging
import threading
from collections.abc import Callable, Sequence

from kvcairn_client.records import Ref
from kvcairn_protocol.layout import Layout

MAX_RECORDS = 1 << 16
PAUSE_SECONDS = 0.5

_log = logging.getLogger(__name__)

Touch = Callable[[Layout, Sequence[Ref]], object]


class Uses:
    """Collects uses for a while, then reports each record once, on a daemon thread. Thread-safe.

    What does not fit is left out, and what fails is not tried again: a use is a hint. The thread ends when nothing is
    left to report.
    """

    def __init__(self, touch: Touch) -> None:
        self._touch = touch
        self._changed = threading.Condition()
        self._waiting: dict[bytes, tuple[Layout, dict[Ref, None]]] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def note(self, layout: Layout, refs: Sequence[Ref]) -> None:
        """These were used. Never waits."""
        with self._changed:
            if self._is_closing or not refs:
                return
            waiting = self._waiting.setdefault(layout.fingerprint, (layout, {}))[1]
            waiting.update(dict.fromkeys(refs[: max(0, MAX_RECORDS - len(waiting))]))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvcairn-attach-uses", daemon=True)
                self._thread.start()

    def close(self, timeout_seconds: float) -> None:
        """Report what waits, and wait for that within a bound; nothing more is taken."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, PAUSE_SECONDS)
                waiting, self._waiting = self._waiting, {}
                if not waiting:
                    self._thread = None
                    return
            for layout, refs in waiting.values():
                self._report(layout, list(refs))

    def _report(self, layout: Layout, refs: list[Ref]) -> None:
        try:
            self._touch(layout, refs)
        except Exception as error:
            _log.debug("%d records that were read in place could not be touched: %s", len(refs), error)
