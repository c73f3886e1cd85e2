"""Buffers for records on their way in, used again instead of allocated anew: fresh memory is faulted in page by page.

Sizes are rounded up to one of eight steps per power of two, so that records of about one size share their buffers.
"""

SMALLEST_BYTES = 64 << 10
"""What is smaller costs less to allocate than to keep."""


class BufferPool:
    """Lends buffers; what came back is kept as long as all of it, lent or free, stays within `total_bytes`.

    How much may be lent is not decided here (memory.py). To be used from the event loop alone.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.lent_bytes = self.free_bytes = 0
        self._free: dict[int, list[bytearray]] = {}

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of exactly `size_bytes`, whose content is anything; to be handed back as it is."""
        room_bytes = rounded(size_bytes)
        free = self._free.get(room_bytes)
        if free:
            buffer = free.pop()
            self.free_bytes -= room_bytes
        else:
            self._drop_for(room_bytes)
            buffer = bytearray(room_bytes)
        self.lent_bytes += room_bytes
        return memoryview(buffer)[:size_bytes]

    def give_back(self, view: memoryview) -> None:
        """Take a buffer back. The view is released, so that late use fails and never sees another's record."""
        buffer: bytearray = view.obj  # type: ignore[assignment]
        view.release()
        room_bytes = len(buffer)
        self.lent_bytes -= room_bytes
        if room_bytes >= SMALLEST_BYTES and self.lent_bytes + self.free_bytes + room_bytes <= self.total_bytes:
            self._free.setdefault(room_bytes, []).append(buffer)
            self.free_bytes += room_bytes

    def _drop_for(self, room_bytes: int) -> None:
        """Make way for a buffer of a size that nobody has given back: those of other sizes go."""
        while self._free and self.lent_bytes + self.free_bytes + room_bytes > self.total_bytes:
            size_bytes, free = next(iter(self._free.items()))
            if free:
                free.pop()
                self.free_bytes -= size_bytes
            else:
                del self._free[size_bytes]


def rounded(size_bytes: int) -> int:
    """The size of the buffer for so many bytes; at most an eighth more where it is kept."""
    if size_bytes < SMALLEST_BYTES:
        return size_bytes
    step_bytes = 1 << ((size_bytes - 1).bit_length() - 4)
    return -(-size_bytes // step_bytes) * step_bytes
