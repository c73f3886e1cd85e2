"""A thread that looks at something all the while that others work on it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

PATIENCE_SECONDS = 30


@contextmanager
def watching(look: Callable[[], None]) -> Iterator[Counter[str]]:
    """Look again and again, in a thread of its own, until the block ends; what `look` raises is raised there."""
    done, seen = threading.Event(), Counter[str]()

    def run() -> None:
        while not done.is_set():
            look()
            seen["looks"] += 1

    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(run)
        try:
            yield seen
        finally:
            done.set()
        watcher.result(PATIENCE_SECONDS)
