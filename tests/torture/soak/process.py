"""What a process holds: memory of its own, descriptors, threads, and LMDB's reader slots."""

from pathlib import Path
from typing import NamedTuple

import lmdb


class Held(NamedTuple):
    """private_kilobytes: pages that it dirtied and nobody shares; the map's are the kernel's to take back."""

    private_kilobytes: int
    descriptors: int
    threads: int
    reader_slots: int


def held(pid: int, directory: Path) -> Held:
    process = Path("/proc", str(pid))
    rollup = (process / "smaps_rollup").read_text()
    private = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_Dirty"))
    descriptors = len(list((process / "fd").iterdir()))
    threads = len(list((process / "task").iterdir()))
    return Held(private, descriptors, threads, _reader_slots(pid, directory))


def _reader_slots(pid: int, directory: Path) -> int:
    """Lines of LMDB's own list of readers that name the process: 'pid thread txnid'."""
    with lmdb.open(str(directory), readonly=True, create=False, max_dbs=8) as environment:
        lines = environment.readers().splitlines()
    return sum(line.split()[0] == str(pid) for line in lines if line.split() and line.split()[0].isdigit())
