"""Power loss: of what a killed service wrote, only what it synced is surely on the disk; of the rest, any pages."""

import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("writes.c")
HEAD = struct.Struct("<QQQ")
SECTOR_BYTES = 4096
"""What a disk writes whole."""


class Kind(IntEnum):
    """See writes.c."""

    WRITE = 0
    SYNCHRONOUS = 1
    SYNC = 2


class Note(NamedTuple):
    """One write or sync, in the order in which the process made them."""

    kind: Kind
    offset: int
    data: bytes


def compiled(directory: Path) -> Path:
    """The library that notes the writes, to be preloaded."""
    library = directory / "writes.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return library


class PowerLoss:
    """The disk of one data directory. lost_writes: how many pages were lost or came alone, over all losses."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._data, self._before = directory / "data.mdb", directory.with_suffix(".before")
        self._notes = directory.with_suffix(".writes")
        self._rng = rng
        self.syncs = self.lost_writes = 0

    def before_start(self) -> None:
        """What is on the disk now is durable."""
        self._notes.unlink(missing_ok=True)
        if self._data.exists():
            shutil.copyfile(self._data, self._before)
        else:
            self._before.write_bytes(b"")

    def after_kill(self) -> None:
        """Put the file back as a disk may have it after a power loss at this moment."""
        if not self._notes.exists():
            return
        notes = list(notes_in(self._notes.read_bytes()))
        syncs = [index for index, note in enumerate(notes) if note.kind is Kind.SYNC]
        self.syncs += len(syncs)
        with self._before.open("r+b") as file:
            for index, note in enumerate(notes):
                is_durable = note.kind is Kind.SYNCHRONOUS or index < (syncs[-1] if syncs else -1)
                for offset, sector in sectors(note):
                    if is_durable or self._rng.random() < 0.5:
                        file.seek(offset)
                        file.write(sector)
                    else:
                        self.lost_writes += 1
            file.truncate(max(self._data.stat().st_size, file.seek(0, 2)))
        shutil.copyfile(self._before, self._data)


def notes_in(text: bytes) -> Iterator[Note]:
    """The notes of a process; the last may have been cut short by the kill, before its write was made."""
    at = 0
    while at + HEAD.size <= len(text):
        kind, offset, length = HEAD.unpack_from(text, at)
        at += HEAD.size
        if at + length > len(text):
            return
        yield Note(Kind(kind), offset, text[at : at + length])
        at += length


def sectors(note: Note) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that reach the disk each by itself."""
    for start in range(0, len(note.data), SECTOR_BYTES):
        yield note.offset + start, note.data[start : start + SECTOR_BYTES]
