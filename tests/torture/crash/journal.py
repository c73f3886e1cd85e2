"""What the tester knows of a tenant's records: acknowledged, in doubt, or gone. Pure; kept by one thread.

An answer that came before the kill is a promise. A request without one may have gone either way, but never half: of a
body the first records may be there and the last not, never the other way round; a deletion took all it named, or
nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Name(NamedTuple):
    """One record of a tenant. kind: the word of the API."""

    layout: bytes
    kind: str
    key: bytes


class Fate(Enum):
    """What must be true of a record after the next start."""

    THERE = "must be there"
    MAYBE = "may be there"
    GONE = "must not be there"


@dataclass(slots=True)
class Known:
    """A record's bytes, which are for ever the same, and its fate."""

    record: bytes
    fate: Fate


class Doubt(NamedTuple):
    """A request without an answer. is_whole: it took all of its records or none; else the first so many of them."""

    names: Sequence[Name]
    is_whole: bool

    def faults(self, found: Mapping[Name, bytes | None]) -> list[str]:
        """What is half done, as one sentence."""
        there = [found[name] is not None for name in self.names]
        rule = "all or none" if self.is_whole else "the first ones alone"
        is_half = len(set(there)) > 1 if self.is_whole else there != sorted(there, reverse=True)
        return [f"an unanswered request was half done: {there}, where {rule} may be there"] if is_half else []


@dataclass(slots=True)
class Journal:
    """One tenant's records. keeps_all: nothing of it is ever evicted, so that an acknowledged record must be there.

    chains: histories that are never deleted from, so that no block may be there without those before it. unsure: what
    was sent and not answered while others had to go for it: a record that waits for room is written after those behind
    it, so that the kill may have parted them.
    """

    keeps_all: bool
    known: dict[Name, Known] = field(default_factory=dict)
    doubt: Doubt | None = None
    chains: list[list[Name]] = field(default_factory=list)
    unsure: set[Name] = field(default_factory=set)

    def fate(self, name: Name) -> Fate:
        known = self.known.get(name)
        return known.fate if known else Fate.GONE

    def names(self, fate: Fate) -> list[Name]:
        return [name for name, known in self.known.items() if known.fate is fate]

    def charged_bytes(self) -> int:
        """Of all that is, or may be, there: whole pages."""
        return sum(charged_bytes(known.record) for known in self.known.values() if known.fate is not Fate.GONE)

    def storing(self, records: Mapping[Name, bytes]) -> None:
        """These are about to be sent, in this order; those that are there already stay what they are."""
        fresh = [name for name in records if self.fate(name) is not Fate.THERE]
        self.known.update({name: Known(records[name], Fate.MAYBE) for name in fresh})
        if self.keeps_all:
            self.doubt = Doubt(fresh, is_whole=False)
        else:
            self.unsure |= records.keys()

    def stored(self, names: Iterable[Name]) -> None:
        """The answer came."""
        if self.keeps_all:
            self._settle(names, Fate.THERE)
        self.unsure.difference_update(names)

    def deleting(self, names: Iterable[Name]) -> None:
        """These are about to be deleted by one request."""
        gone = [name for name in names if self.fate(name) is not Fate.GONE]
        self._settle(gone, Fate.MAYBE)
        self.doubt = Doubt(gone, is_whole=True)

    def deleted(self, names: Iterable[Name]) -> None:
        """The answer came."""
        self._settle([name for name in names if name in self.known], Fate.GONE)

    def faults(self, found: Mapping[Name, bytes | None]) -> list[str]:
        """What is not as it must be, one sentence each, given what a new service has under every known name."""
        faults = self.doubt.faults(found) if self.doubt else []
        for chain in self.chains:
            faults += Doubt([name for name in chain if name not in self.unsure], is_whole=False).faults(found)
        for name, known in self.known.items():
            now = found[name]
            if now is not None and now != known.record:
                faults.append(f"{_said(name)} has other bytes than were stored")
            elif now is None and known.fate is Fate.THERE:
                faults.append(f"{_said(name)} was acknowledged, and is lost")
            elif now is not None and known.fate is Fate.GONE:
                faults.append(f"{_said(name)} was gone, and is back")
        return faults

    def learn(self, found: Mapping[Name, bytes | None]) -> None:
        """What was in doubt is now known, and what a new service lacks stays away."""
        self.doubt = None
        for name, known in self.known.items():
            if found[name] is None:
                known.fate = Fate.GONE
            else:
                known.fate = Fate.THERE if self.keeps_all else Fate.MAYBE

    def _settle(self, names: Iterable[Name], fate: Fate) -> None:
        for name in names:
            self.known[name].fate = fate
        self.doubt = None


def charged_bytes(record: bytes) -> int:
    """What a record counts for: whole pages of 4,096 bytes, its header and LMDB's 16 bytes included."""
    return -(-(16 + len(record)) // 4096) * 4096


def _said(name: Name) -> str:
    return f"the {name.kind} record {name.key.hex()[:12]} of layout {name.layout.hex()[:12]}"
