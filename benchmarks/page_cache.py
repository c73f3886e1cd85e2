"""Which pages of a file are in memory, and a way to drop them that needs no privilege."""

import ctypes
import mmap
import os
from pathlib import Path


def drop(path: Path) -> None:
    """Write the file back and drop its pages from the page cache; those that a process has mapped would stay."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def resident_share(path: Path) -> float:
    """The share of the file's pages that is in the page cache, by mincore."""
    size_bytes = path.stat().st_size
    pages = -(-size_bytes // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with path.open("rb") as file:
        # A private map, so that the buffer counts as writable, which ctypes insists on; nothing is written.
        view = mmap.mmap(file.fileno(), size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with view:
        start = ctypes.c_char.from_buffer(view)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(start), ctypes.c_size_t(size_bytes), found)
        del start
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return sum(page & 1 for page in found) / pages
