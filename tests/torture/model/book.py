"""The model: what docs/wire.md says of records, in plain dictionaries. Pure; knows nothing of the product's code.

Sequential by nature: one request after the other. What may be evicted is not predicted but judged: given what is gone,
`eviction_faults` says which rule of the page that breaks.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

PAGE_BYTES = 4096


class Place(NamedTuple):
    """Where a record is: `tenant` is the tenant's own number, which a tenant made anew does not share."""

    tenant: int
    layout: bytes
    kind: str
    key: bytes


@dataclass(slots=True, eq=False)
class Kept:
    """A stored record. Its last use was request number `latest`, or any from `earliest` on: not all is certain."""

    record: bytes
    position: int
    parent: bytes
    stored: int
    earliest: int
    latest: int

    @property
    def charged_bytes(self) -> int:
        return charged_bytes(len(self.record))


def charged_bytes(record_bytes: int) -> int:
    """Whole pages, LMDB's 16 bytes included."""
    return -(-(16 + record_bytes) // PAGE_BYTES) * PAGE_BYTES


@dataclass(slots=True)
class Book:
    """Every record of every tenant. block_tokens: of each layout; requests: how many were made."""

    block_tokens: Mapping[bytes, int]
    records: dict[Place, Kept] = field(default_factory=dict)
    requests: int = 0

    def verdict(self, place: Place, position: int, parent: bytes) -> str:
        """What a sound record meets: stored, present, parent or conflict; room aside."""
        known = self.records.get(place)
        if known is not None:
            return "present" if (known.position, known.parent) == (position, parent) else "conflict"
        if place.kind == "history":
            above = self._by_prefix(place, parent)
            step = self.block_tokens[place.layout]
            return "parent" if any(each.position != position - step for each in above) else "stored"
        block = self.records.get(place._replace(kind="history"))
        return "conflict" if block and (block.position, block.parent) != (position, parent) else "stored"

    def _by_prefix(self, place: Place, parent: bytes) -> list[Kept]:
        return [
            kept
            for other, kept in self.records.items()
            if other[:3] == (*place[:2], "history") and other.key[:16] == parent and any(parent)
        ]

    def store(self, place: Place, record: bytes, position: int, parent: bytes) -> None:
        self.records[place] = Kept(record, position, parent, self.requests, self.requests, self.requests)

    def above(self, place: Place) -> Place | None:
        """The block that this one follows, where it is stored, one block before."""
        kept = self.records[place]
        step = self.block_tokens[place.layout]
        for other in self.records:
            if other[:3] == (*place[:2], "history") and other.key[:16] == kept.parent:
                return other if self.records[other].position == kept.position - step else None
        return None

    def lineage(self, places: Iterable[Place]) -> set[Place]:
        """These, and of blocks among them all before."""
        found: set[Place] = set()
        for start in places:
            place: Place | None = start
            while place is not None and place in self.records and place not in found:
                found.add(place)
                place = self.above(place) if place.kind == "history" else None
        return found

    def use(self, places: Iterable[Place]) -> None:
        for place in self.lineage(places):
            self.records[place].earliest = self.records[place].latest = self.requests

    def use_perhaps(self, places: Iterable[Place]) -> None:
        """As `use`, where the page leaves open whether it is one."""
        for place in self.lineage(places):
            self.records[place].latest = self.requests

    def lose_uses(self) -> None:
        """A kill: of the uses since a record was stored, some may not have been written."""
        for kept in self.records.values():
            kept.earliest = kept.stored

    def run(self, tenant: int, layout: bytes, keys: list[bytes]) -> tuple[int, list[int]]:
        """history_blocks and state_tokens of a lookup."""
        step = self.block_tokens[layout]
        blocks = 0
        for index, key in enumerate(keys):
            kept = self.records.get(Place(tenant, layout, "history", key))
            if kept is None or kept.position != (index + 1) * step:
                break
            blocks = index + 1
        ends = range(blocks, 0, -1)
        states = [self.records.get(Place(tenant, layout, "state", keys[end - 1])) for end in ends]
        return blocks, [
            end * step for end, state in zip(ends, states, strict=True) if state and state.position == end * step
        ]

    def drop(self, tenant: int, layout: bytes | None = None) -> None:
        gone = [place for place in self.records if place.tenant == tenant and layout in (None, place.layout)]
        for place in gone:
            del self.records[place]

    def charged_bytes(self, tenant: int | None = None) -> int:
        return sum(kept.charged_bytes for place, kept in self.records.items() if tenant in (None, place.tenant))

    def companions(self, place: Place) -> list[Place]:
        """The state and window records that go when this block goes."""
        others = [place._replace(kind=kind) for kind in ("state", "window")] if place.kind == "history" else []
        return [other for other in others if other in self.records]


def least_bytes(book: Book, place: Place, *, busy: Collection[Place], tenant: int | None) -> int:
    """What is left at least where all went that may always go for this record: window rows, and leaves of its kind.

    What shares of the other kinds allow comes on top, so that no record may be refused that fits beside this.
    """
    alive = {each for each in book.records if tenant in (None, each.tenant)}
    while True:
        parents = {book.above(each) for each in alive if each.kind == "history"}
        may_go = alive - parents - set(busy)
        victims = {each for each in may_go if each.kind in ("window", place.kind)}
        victims |= {other for each in victims for other in book.companions(each) if other not in busy}
        if not victims & alive:
            return sum(book.records[each].charged_bytes for each in alive)
        alive -= victims


def eviction_faults(
    book: Book, gone: Collection[Place], *, busy: Collection[Place], tenant: int | None, limit_bytes: int
) -> list[str]:
    """Which rules it breaks that these of the book are gone, to make room within a limit.

    busy: what the request itself stored or used. tenant: whose quota it was, None where the whole store was full.
    """
    alive = {place for place in book.records if place not in gone and tenant in (None, place.tenant)}
    with_block = {other for place in gone for other in book.companions(place)}
    chosen = [place for place in gone if place not in with_block]
    faults = [f"{place} is busy" for place in gone if place in busy]
    faults += [f"{place} was not theirs to take" for place in gone if tenant not in (None, place.tenant)]
    faults += [f"{place} outlived its block" for place in with_block if place not in gone]
    faults += [
        f"{place} outlived its parent" for place in alive if place.kind == "history" and book.above(place) in gone
    ]
    faults += _order_faults(book, chosen, alive - set(busy))
    left_bytes = sum(book.records[place].charged_bytes for place in alive)
    groups = [sum(book.records[each].charged_bytes for each in (place, *book.companions(place))) for place in chosen]
    if gone and left_bytes + max(groups) <= limit_bytes:
        faults.append(f"{left_bytes} bytes are left of {limit_bytes}: more went than had to")
    if left_bytes > limit_bytes:
        faults.append(f"{left_bytes} bytes are left, over the limit of {limit_bytes}")
    return faults


def _order_faults(book: Book, chosen: Iterable[Place], could_go: Collection[Place]) -> list[str]:
    """Window rows before all else; of each kind the least recently used leaf first."""
    parents = {book.above(place) for place in could_go if place.kind == "history"}
    leaves = [place for place in could_go if place not in parents]
    faults = []
    for victim in chosen:
        last = book.records[victim].earliest
        for leaf in leaves:
            older = leaf.kind == victim.kind and book.records[leaf].latest < last
            if older or (leaf.kind == "window" and victim.kind != "window"):
                faults.append(f"{victim} went before {leaf}")
    return faults
