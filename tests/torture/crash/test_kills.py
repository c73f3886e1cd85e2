"""kill -9, again and again, under stores, fetches, deletions, evictions and changes of tenants: nothing acknowledged is
lost or changed, nothing deleted comes back, and no request is half done.

`make torture` kills 200 times each way (`TEST_ARGS='--kills 1000'` for more).
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torture.crash.crowd import Crowd
from torture.crash.keeper import Keeper
from torture.crash.landlord import Landlord
from torture.crash.siege import ADMIN, Siege
from torture.spawner import Spawner, spawning

SHORT_KILLS = 15
FIRST_STARTS, FIRST_SECONDS = 6, 0.15
QUOTA_BYTES = 160 * 4096


@pytest.fixture(scope="module")
def spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_SWEEP_SECONDS": "0.2"}
    with spawning(tmp_path_factory.mktemp("logs"), env) as running:
        yield running


def with_room(spawner: Spawner, directory: Path, seed: int) -> Siege:
    """Two tenants that keep all within guaranteed room, one that is always at its quota, and some that come and go."""
    rngs = [random.Random(f"{seed} {number}") for number in range(4)]
    return Siege(
        spawner=spawner, directory=directory, seed=seed, capacity="64MiB",
        keepers={"keeper-a": Keeper(rngs[0]), "keeper-b": Keeper(rngs[1])},
        crowds={"crowd": Crowd(rngs[2], is_alone=True)}, quotas={"crowd": QUOTA_BYTES},
        landlord=Landlord(rngs[3], keeps_all=True),
    )  # fmt: skip


def without_room(spawner: Spawner, directory: Path, seed: int) -> Siege:
    """Three tenants that fill the whole store and evict each other."""
    rngs = [random.Random(f"{seed} {number}") for number in range(4)]
    return Siege(
        spawner=spawner, directory=directory, seed=seed, capacity="2MiB", keepers={},
        crowds={f"crowd-{number}": Crowd(rngs[number], is_alone=False) for number in range(3)},
        landlord=Landlord(rngs[3], keeps_all=False),
    )  # fmt: skip


@pytest.mark.parametrize("siege_of", [with_room, without_room])
def test_what_was_acknowledged_outlives_every_kill(siege_of, spawner, tmp_path, torture_seed, record_property):
    siege = siege_of(spawner, tmp_path / "data", torture_seed)
    _endure(siege, SHORT_KILLS, record_property)


@pytest.mark.torture
@pytest.mark.parametrize("siege_of", [with_room, without_room])
def test_what_was_acknowledged_outlives_hundreds_of_kills(
    siege_of, spawner, tmp_path, torture_seed, record_property, request
):
    siege = siege_of(spawner, tmp_path / "data", torture_seed)
    _endure(siege, request.config.getoption("--kills"), record_property)


def _endure(siege: Siege, kills: int, record_property) -> None:
    siege.open()
    siege.go_on(kills=kills - 1)
    siege.look()
    workers = [*siege.keepers.values(), *siege.crowds.values(), siege.landlord]
    assert siege.kills == kills
    assert all(worker.answers > 0 for worker in workers), "somebody got no answer at all: nothing was tested"
    record_property("start_seconds", [round(seconds, 3) for seconds in siege.start_seconds])
    record_property("answers", [worker.answers for worker in workers])


def test_a_kill_in_the_very_first_start_leaves_a_directory_that_the_next_can_use(spawner, tmp_path, torture_seed):
    rng = random.Random(torture_seed)
    for number in range(FIRST_STARTS):
        directory = tmp_path / f"data-{number}"
        siege = with_room(spawner, directory, torture_seed)
        early = spawner.start(*siege.flags())
        time.sleep(rng.uniform(0, FIRST_SECONDS))
        early.kill()
        siege.open()
        siege.look()
