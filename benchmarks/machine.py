"""What the figures were measured on: processor, memory, kernel, versions; and what a process keeps in memory."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "kvcairn", "lmdb", "uvicorn", "uvloop", "httptools", "fastapi", "numpy", "xxhash", "zstandard", "torch",
    "transformers",
)  # fmt: skip


def describe() -> dict[str, str]:
    """The machine, the date and the versions that matter, as text by name."""
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": str(os.cpu_count()),
        "memory": _first("/proc/meminfo", "MemTotal") or "?",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    return found | {name: _version(name) for name in PACKAGES}


def private_bytes(pid: int) -> int:
    """Anonymous resident memory of a process: what it holds beside the maps of files (LMDB's map is page cache)."""
    return _kilobytes(pid, "RssAnon") * 1024


def peak_resident_bytes(pid: int) -> int:
    """The most resident memory, maps included, that the process ever had."""
    return _kilobytes(pid, "VmHWM") * 1024


def _kilobytes(pid: int, field: str) -> int:
    text = _first(f"/proc/{pid}/status", field)
    return int(text.split()[0]) if text else 0


def _first(path: str, field: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "–"
