"""Thousands of flipped bits in a data file at rest, each opened by a process that may die of it: none does."""

import os
import random
import shutil
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from damage import PAGE, Survey, compact, fill, flip, survey, tree_pages
from kvcairn_storage.store import RecordKey

pytestmark = pytest.mark.torture

FLIPS = int(os.environ.get("KVCAIRN_TORTURE_FLIPS", "2000"))
SEED = int(os.environ.get("KVCAIRN_TORTURE_SEED", "4"))
FLIP_SECONDS = 60


@pytest.mark.parametrize("where", ["in the trees", "anywhere"])
@pytest.mark.parametrize("is_compact", [True, False], ids=["without old pages", "with old pages"])
def test_no_flipped_bit_gives_a_wrong_answer_or_ends_the_process(tmp_path, where, is_compact):
    journal = fill(tmp_path / "made")
    compact(tmp_path / "made", tmp_path / "compact")
    sound = tmp_path / ("compact" if is_compact else "made")
    pages = places(sound / "data.mdb", where)
    chance, verdicts = random.Random(SEED), Counter()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        for number in range(FLIPS // 4):
            at, bit = chance.choice(pages) * PAGE + chance.randrange(PAGE), chance.randrange(8)
            found = other.submit(flipped, sound, tmp_path / "flipped", journal, at=at, bit=bit).result(FLIP_SECONDS)
            assert found.wrong == 0, f"seed {SEED}, flip {number}, bit {bit} of byte {at}: {found}"
            verdicts[found.verdict] += 1
    print(f"{where}, {'compact' if is_compact else 'with old pages'}: {dict(verdicts)}")
    assert verdicts["misses"] > 0


def places(data: Path, where: str) -> list[int]:
    """Numbers of the pages to flip bits in."""
    content = data.read_bytes()
    return [0, 1, *tree_pages(content)] if where == "in the trees" else list(range(len(content) // PAGE))


def flipped(sound: Path, place: Path, journal: dict[RecordKey, bytes], *, at: int, bit: int) -> Survey:
    """What a store answers on a copy of which one bit is flipped."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound, place)
    flip(place / "data.mdb", at=at, bit=bit)
    return survey(place, journal)
