"""What outlives a restart, a kill, and a second service on the same directory."""

import contextlib
import json
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kvcairn_storage.lmdb import LmdbReader, LmdbStore
from service_caller import Caller
from service_samples import RECORDS, chain, chain_records, fingerprint, layout_document
from serving import running_service, start_service

ADMIN = "secret"


def fill(caller, blocks=5):
    document = layout_document()
    assert caller.register(document).status_code == 201
    keys = chain(document, blocks)
    records = chain_records(document, keys)
    assert caller.store(b"".join(records)).json()["stored"] == blocks
    return document, keys, b"".join(records)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0), (signal.SIGINT, 0)]
)
def test_records_layouts_tenants_and_tokens_outlive_the_end_of_the_process(tmp_path, number, status):
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN}
    with running_service(tmp_path / "data", env=env) as service:
        with service.http(token=ADMIN) as http:
            assert http.put("/v1/tenants/t", json={"codec": "raw", "quota_bytes": 1 << 20}).status_code == 200
            token = http.post("/v1/tenants/t/tokens").json()["token"]
            generation = http.get("/v1/service").json()["generation"]
        with service.http(token=token) as http:
            document, keys, body = fill(Caller(http))
        os.kill(service.pid, number)
        assert service.wait() == status
        assert "Traceback" not in service.log()
    with running_service(tmp_path / "data", env=env) as service, service.http(token=token) as http:
        caller = Caller(http)
        assert caller.lookup(document, keys).json()["history_blocks"] == 5
        assert caller.fetch(document, *[("history", key) for key in keys]).content == body
        assert http.get("/v1/service").json()["generation"] == generation
        with service.http(token=ADMIN) as admin:
            assert admin.get("/v1/tenants/t").json()["codec"] == "raw"


def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_an_upload(tmp_path):
    with running_service(tmp_path / "data") as service, service.http() as http:
        caller = Caller(http)
        document = layout_document(history_bytes=1 << 20)
        caller.register(document)
        keys = chain(document, 64)
        records = chain_records(document, keys)
        acknowledged = 0

        def upload():
            nonlocal acknowledged
            for each in records:
                if caller.store(each).status_code == 200:
                    acknowledged += 1

        thread = threading.Thread(target=_ignoring_the_end, args=(upload,))
        thread.start()
        while acknowledged < 8 and thread.is_alive():
            time.sleep(0.005)
        service.kill()
        thread.join()
    with running_service(tmp_path / "data") as service, service.http() as http:
        found = Caller(http).lookup(document, keys).json()["history_blocks"]
        assert acknowledged >= 8
        assert found >= acknowledged
        whole = Caller(http).fetch(document, *[("history", key) for key in keys[:found]]).content
        assert whole == b"".join(records[:found])


def _ignoring_the_end(work):
    try:
        work()
    except httpx.HTTPError:
        return


def test_a_second_service_on_the_directory_is_refused_with_the_holders_pid(open_service, open_directory):
    second = start_service(open_directory, "--port", open_service.url.rsplit(":", 1)[1])
    assert second.wait() == 2
    assert str(open_service.pid) in second.log()
    assert len(second.log().strip().splitlines()) == 1
    with open_service.http() as http:
        assert http.get("/readyz").status_code == 200


def test_a_directory_of_a_newer_format_is_refused(tmp_path):
    LmdbStore(tmp_path / "data", map_bytes=1 << 20).close()
    identity = json.loads((tmp_path / "data" / "kvcairn.json").read_text())
    (tmp_path / "data" / "kvcairn.json").write_text(json.dumps({**identity, "format": identity["format"] + 1}))
    service = start_service(tmp_path / "data")
    assert service.wait() == 2
    assert "format" in service.log()


def test_a_port_that_is_taken_is_refused_and_the_directory_is_let_go(open_service, tmp_path):
    port = open_service.url.rsplit(":", 1)[1]
    second = start_service(tmp_path / "data", "--port", port)
    assert second.wait() == 2
    assert port in second.log()
    LmdbStore(tmp_path / "data", map_bytes=1 << 20).close()


def test_while_draining_it_finishes_what_is_under_way_and_takes_nothing_new(tmp_path):
    with running_service(tmp_path / "data") as service, service.http() as http:
        caller = Caller(http)
        document = layout_document()
        caller.register(document)
        keys = chain(document, 2)
        records = chain_records(document, keys)
        begun, go_on, answers = threading.Event(), threading.Event(), []

        def body():
            yield records[0]
            begun.set()
            go_on.wait(30)
            yield records[1]

        def upload():
            with service.http() as own:
                answers.append(Caller(own).store(body()))

        thread = threading.Thread(target=upload)
        thread.start()
        begun.wait(30)
        os.kill(service.pid, signal.SIGTERM)
        with service.http() as probe:
            for _ in range(500):
                if probe.get("/readyz").status_code == 503:
                    break
                time.sleep(0.01)
            assert probe.get("/readyz").status_code == 503
            assert probe.get("/healthz").status_code == 200
            refused = probe.get("/v1/stats")
            assert refused.status_code == 503
            assert "draining" in refused.json()["detail"]
            assert int(refused.headers["retry-after"]) > 0
        go_on.set()
        thread.join()
        assert answers[0].json()["stored"] == 2
        assert service.wait() == 0
    assert kept(tmp_path / "data")["records"] == 2


def test_a_drain_has_an_end(tmp_path):
    env = {"KVCAIRN_DRAIN_SECONDS": "0.3"}
    with running_service(tmp_path / "data", env=env) as service:
        begun = threading.Event()

        def body():
            yield b"K"
            begun.set()
            time.sleep(20)
            yield b"V"

        def upload():
            with service.http() as http:
                _ignoring_the_end(lambda: Caller(http).store(body()))

        thread = threading.Thread(target=upload, daemon=True)
        thread.start()
        begun.wait(30)
        assert service.terminate() == 0


def test_a_record_larger_than_the_capacity_never_fits_and_a_full_store_says_so(tmp_path):
    with running_service(tmp_path / "data", "--capacity", "1MiB") as service, service.http() as http:
        caller = Caller(http)
        large = layout_document(history_bytes=1 << 20)
        caller.register(large)
        refused = caller.store(chain_records(large, chain(large, 1))[0])
        assert refused.status_code == 413
        assert refused.json()["rejected"][0]["reason"] == "full"
        small = layout_document(history_bytes=200_000)
        caller.register(small)
        keys = chain(small, 8)
        answer = caller.store(b"".join(chain_records(small, keys))).json()
        assert (answer["stored"], {each["reason"] for each in answer["rejected"]}) == (5, {"full"})
        full = caller.http.put(
            caller.path(small, "history", keys[5]),
            content=chain_records(small, keys)[5],
            headers={"content-type": RECORDS},
        )
        assert full.status_code == 507
        assert caller.lookup(small, keys).json()["history_blocks"] == 5


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("own") / "data"


@pytest.fixture(scope="module")
def own_service(directory):
    """One whose data directory these tests read, too."""
    with running_service(directory, env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as service:
        yield service


def test_a_full_disk_is_507_and_nothing_stored_is_harmed(own_service, directory):
    with own_service.http(token=ADMIN) as http:
        caller = Caller(http)
        document, keys, body = fill(caller)
        large = layout_document(history_bytes=16 << 20)
        caller.register(large)
        (key,) = chain(large, 1)
        (whole,) = chain_records(large, [key])
        before = resource.prlimit(own_service.pid, resource.RLIMIT_FSIZE)
        used_bytes = (directory / "data.mdb").stat().st_size
        resource.prlimit(own_service.pid, resource.RLIMIT_FSIZE, (used_bytes, before[1]))
        refused = caller.store(whole)
        assert refused.status_code == 507
        assert refused.json()["rejected"] == [{"index": 0, "key": key.hex(), "reason": "full"}]
        assert caller.exists(large, ("history", key)) == [False]
        assert caller.fetch(document, *[("history", each) for each in keys]).content == body
        resource.prlimit(own_service.pid, resource.RLIMIT_FSIZE, before)
        assert caller.store(whole).json()["stored"] == 1
        assert caller.fetch(large, ("history", key)).content == whole


def test_of_a_deleted_tenant_nothing_is_kept_on_the_disk(own_service, directory):
    with own_service.http(token=ADMIN) as admin:
        before = kept(directory)
        admin.put("/v1/tenants/gone", json={})
        token = admin.post("/v1/tenants/gone/tokens").json()["token"]
        with own_service.http(token=token) as http:
            fill(Caller(http))
        assert kept(directory) == {name: count + (5 if name == "records" else 1) for name, count in before.items()}
        assert token.encode() not in (directory / "data.mdb").read_bytes()
        assert admin.delete("/v1/tenants/gone").status_code == 204
        assert kept(directory) == before


def test_what_races_the_deletion_of_its_tenant_is_not_kept_either(own_service, directory):
    with own_service.http(token=ADMIN) as admin, ThreadPoolExecutor(3) as pool:
        before = kept(directory)
        for _ in range(10):
            admin.put("/v1/tenants/gone", json={})
            token = admin.post("/v1/tenants/gone/tokens").json()["token"]
            with own_service.http(token=token) as http:
                made = pool.submit(service_token, own_service, "gone")
                registered = pool.submit(Caller(http).register, layout_document())
                assert admin.delete("/v1/tenants/gone").status_code == 204
                assert made.result() in (200, 404)
                assert registered.result().status_code in (201, 401, 404)
        assert kept(directory) == before


def service_token(service, name):
    with service.http(token=ADMIN) as http:
        return http.post(f"/v1/tenants/{name}/tokens").status_code


def kept(directory):
    """How much of everything there is on the disk."""
    with contextlib.closing(LmdbReader(directory)) as reader:
        documents = {table: len(reader.documents(table)) for table in ("tenants", "tokens", "layouts")}
        return {"records": reader.count(), **documents}


def test_what_a_kill_in_the_middle_of_a_deletion_left_is_dropped_at_the_next_start(tmp_path):
    """Of a layout its document is gone, of a tenant its own: those go first."""
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN}
    with running_service(tmp_path / "data", env=env) as service, service.http(token=ADMIN) as http:
        http.put("/v1/tenants/gone", json={})
        with service.http(token=http.post("/v1/tenants/gone/tokens").json()["token"]) as tenant:
            fill(Caller(tenant))
        document, keys, _ = fill(Caller(http))
    with contextlib.closing(LmdbStore(tmp_path / "data", map_bytes=1 << 30)) as store:
        (name,) = (name for name in store.documents("layouts") if fingerprint(document).hex() in name)
        assert store.delete_document("layouts", name)
        assert store.delete_document("tenants", "gone")
    with running_service(tmp_path / "data", env=env) as service, service.http(token=ADMIN) as http:
        assert kept(tmp_path / "data") == {"records": 0, "tenants": 1, "tokens": 0, "layouts": 0}
        assert http.get("/v1/stats/all").json()["charged_bytes"] == 0
        Caller(http).register(document)
        assert Caller(http).lookup(document, keys).json()["history_blocks"] == 0
