"""What is read again while the service runs: when its files change, as a mounted secret does, or on SIGHUP.

A change that cannot be taken is logged, and what was there before goes on.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcairn_service.errors import SettingsError

_log = logging.getLogger("kvcairn.reload")

Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Reloadable:
    """One thing with its files. act: reads them; whether that changed anything. SettingsError: they are no good."""

    name: str
    paths: tuple[Path, ...]
    act: Callable[[], bool]


class Reloads:
    """Everything that can be read again. For one thread."""

    def __init__(self, parts: Sequence[Reloadable]) -> None:
        self._parts = tuple(parts)
        # Nothing yet: what changed between the reading of the settings and now is found by the first look.
        self._seen: dict[str, Signature] = {}

    def changed(self) -> list[str]:
        """Read again what has other files than before; the names of what that changed."""
        return list(self._run(only_changed=True))

    def all(self) -> list[str]:
        """Read everything again; the names of what that changed."""
        return list(self._run(only_changed=False))

    def _run(self, *, only_changed: bool) -> Iterator[str]:
        for part in self._parts:
            # Taken before the files are read: what changes meanwhile is seen the next time.
            found = signature(part.paths)
            if only_changed and found == self._seen.get(part.name):
                continue
            self._seen[part.name] = found
            if _acted(part):
                yield part.name


def _acted(part: Reloadable) -> bool:
    try:
        has_changed = part.act()
    except SettingsError as error:
        _log.error("%s was not read again: %s", part.name, error)
        return False
    if has_changed:
        _log.warning("%s was read again", part.name)
    return has_changed


def signature(paths: Sequence[Path]) -> Signature:
    """What tells a file from the one that was there before, also behind a link that was turned; None: it is gone."""
    return tuple(map(_of_one, paths))


def _of_one(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
