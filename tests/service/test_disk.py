"""Disks that are full, read-only or failing under a real service: it reads on, says why it cannot store, and recovers.

Where no file system of the test's own may be mounted, the full disk is a limit on the size of files alone.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from damage import PAGE, flip, tree_pages
from kept import ADMIN, ENV, Kept
from service_caller import Caller
from service_samples import HISTORY, RECORDS, chain, chain_records, fingerprint, layout_document, missing, split
from serving import ServiceProcess, running_service, service_environment, start_service
from sockets import eventually


def check_large_is_refused(service: ServiceProcess, kept: Kept) -> None:
    """A record that needs new space is refused, and the answer says so; nothing is evicted in vain for it."""
    (key,) = chain(kept.large, 1)
    (record,) = chain_records(kept.large, [key])
    with kept.caller(service) as caller:
        path, headers = caller.path(kept.large, "history", key), {"content-type": RECORDS}
        several, one = caller.store(record), caller.http.put(path, content=record, headers=headers)
        assert several.json()["rejected"] == [{"index": 0, "key": key.hex(), "reason": "full"}]
        for answer in (several, one):
            assert answer.status_code == 507
            assert int(answer.headers["retry-after"]) > 0
        assert caller.exists(kept.large, ("history", key)) == [False]
    with service.http() as http:
        assert http.get("/readyz").status_code == http.get("/healthz").status_code == 200


def check_a_document_is_refused(service: ServiceProcess, kept: Kept) -> None:
    """So is a layout, and it is not registered."""
    wide = {**layout_document(model="wide"), "identity": {"note": "x" * 60_000}}
    with kept.caller(service) as caller:
        refused = caller.register(wide)
        assert refused.status_code == 507
        assert int(refused.headers["retry-after"]) > 0
        assert caller.http.get(f"/v1/layouts/{fingerprint(wide).hex()}").status_code == 404


@contextmanager
def small_file_system(place: Path, *, size: str = "16m") -> Iterator[Path]:
    """A file system of its own; skips where none may be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here; the limit on the size of files stands in for it")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # noqa: S607


def test_a_full_disk_stops_writing_alone_and_what_was_acknowledged_stays(tmp_path):
    """A foreign file takes all there is; then the service is killed, starts on the full disk, and is given room."""
    with small_file_system(tmp_path / "data") as data:
        with running_service(data, env=ENV) as service:
            kept = Kept(service)
            kept.store(service, 20)
            fill_up(data / "foreign")
            kept.check_reading(service)
            check_large_is_refused(service, kept)
            check_a_document_is_refused(service, kept)
            kept.check_reading(service)
            service.kill()
        with running_service(data, env=ENV) as service:
            kept.check_reading(service)
            check_large_is_refused(service, kept)
            check_a_document_is_refused(service, kept)
            (data / "foreign").unlink()
            assert kept.store(service, 5)["stored"] == 5
            kept.check_reading(service)
            fill_up(data / "foreign", left_bytes=1 << 20)  # a write that is cut short, which LMDB calls another error
            check_large_is_refused(service, kept)
            kept.check_reading(service)
            assert service.terminate() == 0
            assert "Traceback" not in service.log()


def test_a_limit_on_the_size_of_files_stops_writing_alone_and_what_was_acknowledged_stays(tmp_path):
    """As a full disk, wherever tests may run."""
    with running_service(tmp_path / "data", env=ENV) as service:
        kept = Kept(service)
        kept.store(service, 20)
        before = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
        used_bytes = (tmp_path / "data" / "data.mdb").stat().st_size
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (used_bytes, before[1]))
        kept.check_reading(service)
        check_large_is_refused(service, kept)
        check_a_document_is_refused(service, kept)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, before)
        assert kept.store(service, 5)["stored"] == 5
        kept.check_reading(service)
        service.kill()
    with running_service(tmp_path / "data", env=ENV) as service:
        kept.check_reading(service)


def test_a_data_directory_that_cannot_be_written_is_refused_by_name(tmp_path):
    with small_file_system(tmp_path / "data") as data:
        with running_service(data, env=ENV):
            pass
        subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)  # noqa: S607
        refused = start_service(data, env=ENV)
        assert refused.wait() == 2
        assert "cannot be opened" in refused.log()
        assert "Read-only" in refused.log()
        assert "Traceback" not in refused.log()


def test_a_file_that_is_cut_under_a_service_is_read_no_more_and_the_next_start_begins_anew(tmp_path):
    data = tmp_path / "data" / "data.mdb"
    with running_service(tmp_path / "data", env=ENV) as service:
        kept = Kept(service)
        kept.store(service, 20)
        os.truncate(data, data.stat().st_size // 2)
        asked = [("history", key) for key in kept.keys[:20]]
        with kept.caller(service) as caller:
            assert caller.http.get(caller.path(kept.document, "history", kept.keys[0])).status_code == 404
            with pytest.raises(httpx.RemoteProtocolError):
                caller.fetch(kept.document, *asked)
            assert caller.exists(kept.document, *asked) == [False] * 20
            assert caller.store(kept.records[20]).status_code == 500
        with service.http() as http:
            assert http.get("/healthz").status_code == http.get("/readyz").status_code == 503
            assert "was cut while it was in use" in http.get("/readyz").json()["detail"]
        assert service.returncode is None
        service.terminate()
    with running_service(tmp_path / "data", env=ENV) as service, service.http(token=ADMIN) as http:
        assert "begins anew" in service.log()
        assert http.get("/readyz").status_code == 200
        assert http.get("/v1/stats/all").json()["charged_bytes"] == 0


def test_a_record_whose_bits_were_flipped_is_found_by_every_kind_of_reader_and_replaced_by_the_next_store(tmp_path):
    """By a single GET, by a report of who fetched it, and by the store of the same record."""
    data = tmp_path / "data" / "data.mdb"
    with running_service(tmp_path / "data", env={**ENV, "KVCAIRN_SCRUB_BYTES_PER_SECOND": "0"}) as service:
        kept = Kept(service)
        kept.store(service, 3)
        content = data.read_bytes()
        for record in kept.records[:3]:
            flip(data, at=content.index(record) + 50_000, bit=3)
        with kept.caller(service) as caller:
            got = caller.http.get(caller.path(kept.document, "history", kept.keys[0]))
            assert got.status_code == 404
            report = {"layout": fingerprint(kept.document).hex(), "kind": "history", "key": kept.keys[1].hex()}
            assert caller.http.post("/v1/records:report", json=report).json() == {"quarantined": True}
            assert caller.store(kept.records[2]).json()["stored"] == 1  # what is there was verified, and replaced
            assert caller.exists(kept.document, *[("history", key) for key in kept.keys[:3]]) == [False, False, True]
        with service.http(token=ADMIN) as http:
            assert Caller(http).metric("kvcairn_quarantined_records_total", tenant="t") == 3
        kept.stored = 0
        assert kept.store(service, 3)["stored"] == 2
        kept.check_reading(service)


def test_a_record_whose_key_was_flipped_under_a_service_ends_one_fetch_and_is_a_miss_from_then_on(tmp_path):
    data = tmp_path / "data" / "data.mdb"
    with running_service(tmp_path / "data", env=ENV) as service:
        kept = Kept(service)
        kept.store(service, 3)
        content, asked = data.read_bytes(), [("history", key) for key in kept.keys[:3]]
        for page in tree_pages(content):
            at = content.find(kept.keys[1], page * PAGE, (page + 1) * PAGE)
            if at >= 0:
                flip(data, at=at + 31, bit=0)
        with kept.caller(service) as caller:
            with pytest.raises(httpx.RemoteProtocolError):
                caller.fetch(kept.document, *asked)
            answers = split(caller.fetch(kept.document, *asked).content)
            assert answers == [kept.records[0], missing(kept.document, HISTORY, kept.keys[1]), kept.records[2]]
            assert caller.store(kept.records[1]).json()["stored"] == 1
        kept.check_reading(service)


def test_the_scrub_finds_what_nobody_reads(tmp_path):
    env = {**ENV, "KVCAIRN_SCRUB_BYTES_PER_SECOND": "1GiB", "KVCAIRN_SWEEP_SECONDS": "0.2"}
    data = tmp_path / "data" / "data.mdb"
    with running_service(tmp_path / "data", env=env) as service:
        kept = Kept(service)
        kept.store(service, 3)
        flip(data, at=data.read_bytes().index(kept.records[1]) + 50_000, bit=3)
        with kept.caller(service) as caller:
            asked = [("history", key) for key in kept.keys[:3]]
            assert eventually(lambda: caller.exists(kept.document, *asked) == [True, False, True])


def test_the_commands_say_what_is_wrong_with_a_damaged_directory_in_one_line(tmp_path):
    with running_service(tmp_path / "data", env=ENV) as service:
        kept = Kept(service)
        kept.store(service, 20)
    data = tmp_path / "data" / "data.mdb"
    flip(data, at=data.read_bytes().index(kept.records[0]) + 50_000, bit=3)
    checked = command("check", tmp_path / "data")
    assert checked.returncode == 1
    assert f"history {kept.keys[0].hex()}" in checked.stdout
    assert "20 records checked, 1 faults" in checked.stdout
    os.truncate(data, data.stat().st_size // 2)
    for arguments in (["check"], ["backup", tmp_path / "copy"]):
        refused = command(arguments[0], tmp_path / "data", *arguments[1:])
        assert refused.returncode == 2
        assert "is damaged: the tree goes on to page" in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.stderr
    assert not (tmp_path / "copy" / "data.mdb").exists()


def command(name: str, *arguments: Path) -> "subprocess.CompletedProcess[str]":
    """`kvcairn NAME …`, as a person runs it."""
    line = [sys.executable, "-m", "kvcairn_service", name, *map(str, arguments)]
    environment = {**service_environment(), "COLUMNS": "400"}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def fill_up(foreign: Path, *, left_bytes: int = 0) -> None:
    """Let a file grow until its file system has no more than so many bytes left."""
    with foreign.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - left_bytes)
