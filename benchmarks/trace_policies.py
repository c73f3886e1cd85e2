"""What other ways to fill a cache would hit on the same trace; none of the store's code is used.

A chain is one prompt's blocks, from the first one on; an id names a prefix, so that a block never stands behind another
parent. Hits are counted as a prefix cache counts them: the run from the first block on that is there when the prompt
comes. All blocks are of one size, and a capacity is a number of them.
"""

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from itertools import takewhile

Chain = Sequence[int]

NEVER = 2**62


def unbounded(chains: Iterable[Chain]) -> int:
    """Blocks that hit where nothing ever goes."""
    seen: set[int] = set()
    hits = 0
    for chain in chains:
        hits += _run(chain, seen)
        seen.update(chain)
    return hits


def least_recently_used(chains: Iterable[Chain], *, capacity_blocks: int) -> int:
    """Blocks that hit where each one used takes the place of the one unused for longest, wherever that stands."""
    order: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for chain in chains:
        hits += _run(chain, order.keys())
        for block in chain:
            order[block] = None
            order.move_to_end(block)
            if len(order) > capacity_blocks:
                order.popitem(last=False)
    return hits


def clairvoyant(chains: Sequence[Chain], *, capacity_blocks: int) -> int:
    """Blocks that hit where the one goes whose next use is farthest away, the new one included (Belady's MIN).

    No policy hits more. A parent is always used before its child, so that what will be used again has no gaps.
    """
    next_uses = _next_uses(chains)
    kept: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = use = 0
    for chain in chains:
        hits += _run(chain, kept.keys())
        for block in chain:
            kept[block] = next_uses[use]
            heapq.heappush(farthest, (-next_uses[use], block))
            use += 1
            if len(kept) > capacity_blocks:
                _drop_farthest(kept, farthest)
    return hits


def _drop_farthest(kept: dict[int, int], farthest: list[tuple[int, int]]) -> None:
    """Entries of `farthest` that a later use has overtaken are passed by."""
    while True:
        next_use, block = heapq.heappop(farthest)
        if kept.get(block) == -next_use:
            del kept[block]
            return


def _next_uses(chains: Iterable[Chain]) -> list[int]:
    """For each use of a block, in order, the number of the next use of the same one; NEVER where there is none."""
    uses = [block for chain in chains for block in chain]
    following: dict[int, int] = {}
    found = [NEVER] * len(uses)
    for use in range(len(uses) - 1, -1, -1):
        found[use] = following.get(uses[use], NEVER)
        following[uses[use]] = use
    return found


def _run(chain: Chain, present: Container[int]) -> int:
    return len(list(takewhile(lambda block: block in present, chain)))
