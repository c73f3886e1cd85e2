"""A setting of glibc's allocator that large records need: keep what is freed, instead of faulting it in again."""

import ctypes
import logging

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LOG = logging.getLogger(__name__)


def keep_freed_memory() -> bool:
    """Raise the thresholds above which glibc gives memory back; False where the C library has no such setting.

    By default every copy of a record of 2 MB is mapped, faulted in page by page, and unmapped again. Both thresholds
    are needed: one says what is mapped by itself, the other what the heap gives back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _LOG.debug("this C library has no mallopt; its allocator is left as it is")
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 1 << 30) and mallopt(_M_MMAP_THRESHOLD, 32 << 20))
