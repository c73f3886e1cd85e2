"""Logs: one line per event on stderr, plain for people or JSON for machines; never a token."""

import json
import logging
import sys
import time
from typing import Any

from kvcairn_service.flood import Flood
from kvcairn_service.settings import Settings

EXTRA = ("request_id", "tenant", "sent_bytes", "milliseconds", "left_out")


class PlainFormatter(logging.Formatter):
    """Time, level, message, and what is known of the request."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        known = " ".join(f"{name}={value}" for name, value in _extra(record).items())
        line = f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower():7} {record.getMessage()} {known}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=True)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name in EXTRA if (value := getattr(record, name, None)) is not None}


class Limited(logging.Filter):
    """Lets some lines of a logger through, where strangers decide how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self._flood = Flood()

    def filter(self, record: logging.LogRecord) -> bool:
        left_out = self._flood.admits(time.monotonic())
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines left out before it)", None
        return left_out is not None


def configure_logs(settings: Settings) -> None:
    """Send everything to stderr in the chosen form, from the chosen level on. Changes the process's root logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else PlainFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # Its lines are about its own workings; what matters of them is logged here.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(Limited())
    logging.getLogger("httpx").setLevel(logging.WARNING)
