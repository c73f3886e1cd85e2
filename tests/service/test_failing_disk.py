"""A disk that answers "input/output error": what was refused does not count, and what was acknowledged stays."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kept import ENV, Kept
from serving import ServiceProcess, running_service

SOURCE = Path(__file__).with_name("failing_disk.c")


class FailingDisk:
    """Told what is to fail: s syncing, w writing pages, m the page that makes a commit count; nothing otherwise."""

    def __init__(self, directory: Path, compiler: str) -> None:
        self._told = directory / "told"
        self.heal()
        library = directory / "failing_disk.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        self.environment = {**ENV, "LD_PRELOAD": str(library), "FAILING_DISK": str(self._told)}

    def fail(self, what: str) -> None:
        self._told.write_text(what)

    def heal(self) -> None:
        self._told.write_text("-")


@pytest.fixture
def disk(tmp_path: Path) -> FailingDisk:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here; tests/storage has the same faults one level up, made by FaultyStore")
    return FailingDisk(tmp_path, compiler)


def is_refused(kept: Kept, service: ServiceProcess) -> bool:
    """Whether the next record is refused with an error, and is not there."""
    before = kept.stored
    answer = kept.store(service, 1)
    with kept.caller(service) as caller:
        (is_there,) = caller.exists(kept.document, ("history", kept.keys[before]))
    return (answer["status"], kept.stored, is_there) == (500, before, False)


def test_after_a_failed_write_or_sync_nothing_of_it_counts_and_the_next_store_works(tmp_path, disk):
    with running_service(tmp_path / "data", env=disk.environment) as service:
        kept = Kept(service)
        kept.store(service, 5)
        for what in ("s", "w", "s"):
            disk.fail(what)
            assert is_refused(kept, service)
            kept.check_reading(service)
            disk.heal()
            assert kept.store(service, 2)["stored"] == 2
            kept.check_reading(service)
        service.kill()
    with running_service(tmp_path / "data", env=disk.environment) as service:
        kept.check_reading(service)
        assert kept.store(service, 1)["stored"] == 1


def test_where_the_root_page_cannot_be_written_it_reads_on_and_stores_again_once_that_is_over(tmp_path, disk):
    """LMDB itself refuses everything from then on, reading included: it has to be opened anew."""
    with running_service(tmp_path / "data", env=disk.environment) as service:
        kept = Kept(service)
        kept.store(service, 5)
        for _ in range(2):
            disk.fail("m")
            assert is_refused(kept, service)
            assert is_refused(kept, service)
            kept.check_reading(service)
            disk.heal()
            assert kept.store(service, 2)["stored"] == 2
            kept.check_reading(service)
        with service.http() as http:
            assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        service.kill()
    with running_service(tmp_path / "data", env=disk.environment) as service:
        kept.check_reading(service)
