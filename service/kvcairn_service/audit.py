"""The audit log: one JSON line for what an administrator did, or was refused, and who, when and from where.

To a file of its own, or to the service's log where none is named. Never a token's text. Who asks for a thing to be
undone, as for a stolen token to be revoked, must not be stopped by a full disk: a line that the file does not take goes
to the service's log as an error, is counted, and the action stands.
"""

import asyncio
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcairn_service.errors import SettingsError

MODE = 0o600
OPERATOR, NOBODY = "operator", "nobody"
"""Who is no caller: whoever changes the service's files, and whoever came without a valid token."""

_log = logging.getLogger("kvcairn.audit")
# Of all lines these are the ones that nobody may turn off by a level.
_log.setLevel(logging.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line. who: admin, open, a token's id, operator or nobody. outcome: done, refused or failed.

    origin: the caller's address; unix for a Unix socket. details: what else is known, such as ids; no secrets.
    """

    who: str
    action: str
    outcome: str
    tenant: str | None = None
    origin: str | None = None
    status: int | None = None
    request_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def line(self, now: float) -> str:
        """The JSON, without its line end. now: seconds since 1970."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        known = {
            "time": moment, "who": self.who, "action": self.action, "tenant": self.tenant, **self.details,
            "from": self.origin, "outcome": self.outcome, "status": self.status, "request_id": self.request_id,
        }  # fmt: skip
        return json.dumps({name: value for name, value in known.items() if value is not None})


class AuditLog:
    """Where lines go. failures: how many the file did not take. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """SettingsError where the file cannot be opened: an audit log that never works is found out at the start."""
        self.failures = 0
        self._path = path
        self._lock = threading.Lock()
        self._is_torn = False
        self._descriptor = -1 if path is None else _open(path)

    async def note(self, entry: Entry) -> None:
        """Write one line; on return the kernel has it, or the service's log. Never raises for a disk's sake."""
        line = entry.line(time.time())
        if self._path is None:
            _log.info("audit %s", line)
        else:
            await asyncio.to_thread(self._write_or_say, self._path, line)

    def reopen(self) -> bool:
        """Go on with whatever file is at the path now; whether it is another one.

        SettingsError, and the old one stays, where there can be none.
        """
        if self._path is None:
            return False
        with self._lock:
            is_another = _is_another(self._path, self._descriptor)
            if is_another:
                self._exchange(self._path)
        return is_another

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _write_or_say(self, path: Path, line: str) -> None:
        try:
            with self._lock:
                if _is_another(path, self._descriptor):
                    self._exchange(path)
                self._write(line)
        except (OSError, SettingsError) as error:
            self.failures += 1
            _log.error("the audit log %s took no line (%s); audit %s", path, error, line)

    def _write(self, line: str) -> None:
        # What a full disk has cut off must not swallow the line behind it.
        data = (("\n" if self._is_torn else "") + line + "\n").encode()
        written = os.write(self._descriptor, data)
        self._is_torn = written < len(data)
        if self._is_torn:
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")

    def _exchange(self, path: Path) -> None:
        fresh = _open(path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._is_torn = fresh, False


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
    except OSError as error:
        raise SettingsError(f"audit_log: cannot write {path}: {error.strerror}") from None


def _is_another(path: Path, descriptor: int) -> bool:
    """Whether the file was moved away by whoever rotates it, or was closed."""
    if descriptor < 0:
        return True
    try:
        there, here = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return True
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
