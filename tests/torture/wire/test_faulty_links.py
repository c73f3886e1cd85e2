"""A network that delays, drips, stalls, cuts, resets, half closes, drops, doubles and flips between a real engine and
a real service, in either direction and anywhere in the stream.

What the engine computes is what an uninterrupted run computes, it waits for no longer than its budget, and the service
keeps nothing but what an engine on a good network would have stored.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faulty_link import FaultyLink
from kvcairn_client.budgets import Budgets
from link_faults import KINDS, LinkFault, Way, drawn
from serving import running_service
from torture.wire.engine import BLOCKS, Engine, Name

BUDGETS = Budgets(
    connect_seconds=0.3, control_seconds=0.3, fetch_seconds=0.5, store_seconds=0.5, restore_seconds=0.6,
    stall_seconds=0.25,
)  # fmt: skip
LOADED_MACHINE_SECONDS = 10.0
"""What a loaded machine may add to the budget and to the computing; far below the hour for which a stall lasts."""

REACH_BYTES = 256 << 10
"""About what one connection carries here: offsets of faults lie below."""

SHORT = 8


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("wire")
    with running_service(directory / "data", "--uds", str(directory / "s")) as service:
        engine = Engine(service)
        yield engine
        engine.close()


@dataclass(slots=True)
class Seen:
    """Of many prompts. faults: kinds and ways that a connection met; stored: records that came over a link."""

    faults: set[tuple[str, Way]] = field(default_factory=set)
    hits: int = 0
    stored: int = 0


def check(engine: Engine, seed: int, faults: Iterator[LinkFault], socket_path: Path, seen: Seen) -> None:
    """One prompt over a link with these faults; the seed says what is stored before, and over what kind of socket."""
    rng = random.Random(seed)
    names: list[Name] = [("history", block) for block in range(rng.randint(0, BLOCKS))]
    names += [("state", block) for _, block in names if rng.random() < 0.4]
    engine.begin(names, compressed=rng.random() < 0.5)
    tcp, unix = engine.urls
    target, path = (unix, socket_path) if rng.random() < 0.5 else (tcp, None)
    with FaultyLink(target, faults, socket_path=path) as link:
        done = engine.prefill(link.url, BUDGETS)
    where = f"seed {seed}, {link.seen}"
    assert done.seconds < BUDGETS.restore_seconds + LOADED_MACHINE_SECONDS, where
    found = engine.stored()
    assert found.keys() >= set(names), where
    wrong = [name for name, record in found.items() if record not in (good[name] for good in engine.good)]
    assert wrong == [], where
    seen.faults |= {(fault.kind, fault.way) for fault in link.seen if fault}
    seen.hits += done.hit_tokens > 0
    seen.stored += len(found) - len(names)


def test_no_fault_on_the_wire_changes_a_bit_or_costs_more_than_the_budget(engine: Engine, tmp_path: Path) -> None:
    seen = Seen()
    for seed in range(SHORT):
        check(engine, seed, drawn(seed, reach_bytes=REACH_BYTES), tmp_path / f"{seed}", seen)
    assert len(seen.faults) > SHORT
    assert seen.hits
    assert seen.stored


@pytest.fixture
def seeds(request: pytest.FixtureRequest, torture_seed: int) -> range:
    count: int = request.config.getoption("--wire-seeds")
    return range(torture_seed, torture_seed + count)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_thousands_of_faults_on_the_wire_change_no_bit(engine: Engine, tmp_path: Path, seeds: range) -> None:
    seen = Seen()
    for seed in seeds:
        check(engine, seed, drawn(seed, reach_bytes=REACH_BYTES), tmp_path / f"{seed}", seen)
    assert seen.faults == {(kind, way) for kind in KINDS for way in Way}
    assert seen.hits > len(seeds) // 20
    assert seen.stored > len(seeds) // 20


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_a_flip_anywhere_in_an_upload_is_stored_nowhere(engine: Engine, tmp_path: Path, seeds: range) -> None:
    """What the engine stores goes over links that flip one bit each, from the first head to the last payload."""
    rng, seen = random.Random(seeds.start), Seen()
    for seed in seeds:
        faults = (LinkFault("flip", Way.UP, rng.randrange(REACH_BYTES), rng.randrange(8)) for _ in itertools.count())
        check(engine, seed, faults, tmp_path / f"{seed}", seen)
    assert seen.stored > len(seeds) // 20
