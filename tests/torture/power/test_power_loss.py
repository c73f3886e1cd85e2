"""Power loss, as far as it can be had without pulling a plug: after a kill the file holds what was synced, and of what
was written since any pages. Nothing acknowledged is lost, and the tree is whole.

A kill -9 alone would not tell: the kernel keeps what was written and never synced.
"""

import random
import shutil
from collections.abc import Iterator

import pytest

from torture.crash.crowd import Crowd
from torture.crash.keeper import Keeper
from torture.crash.landlord import Landlord
from torture.crash.siege import ADMIN, Siege
from torture.power.loss import PowerLoss, compiled
from torture.spawner import Spawner, spawning

SHORT_LOSSES, MOST_MORE = 6, 60
"""A few kills may all come between two commits, when nothing is under way: so many more are made until one does not."""

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler, to note what a process writes")


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    """Starts services whose writes are noted."""
    directory = tmp_path_factory.mktemp("noting")
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN, "LD_PRELOAD": str(compiled(directory))}
    with spawning(directory, env) as running:
        yield running


@pytest.mark.parametrize("losses", [SHORT_LOSSES, pytest.param(None, marks=pytest.mark.torture)])
def test_what_was_acknowledged_outlives_the_loss_of_what_was_not_synced(
    noting, tmp_path, torture_seed, losses, request
):
    rngs = [random.Random(f"{torture_seed} {number}") for number in range(4)]
    power = PowerLoss(tmp_path / "data", rngs[0])
    siege = Siege(
        spawner=noting, directory=tmp_path / "data", seed=torture_seed, capacity="16MiB",
        keepers={"keeper": Keeper(rngs[1], room_bytes=4 << 20)},
        crowds={"crowd": Crowd(rngs[2], is_alone=True)}, quotas={"crowd": 160 * 4096},
        landlord=Landlord(rngs[3], keeps_all=True),
        before_start=power.before_start, after_kill=power.after_kill,
    )  # fmt: skip
    siege.open()
    siege.go_on(kills=(losses or request.config.getoption("--kills")) - 1)
    for _ in range(MOST_MORE):
        if power.lost_writes:
            break
        siege.go_on(kills=1)
    siege.look()
    assert power.syncs > siege.kills, "no sync was noted: nothing was tested"
    assert power.lost_writes > 0, "nothing was ever under way: nothing was tested"
