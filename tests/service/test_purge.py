"""Undoing a faulty writer through a real service: who wrote what, what a purge takes, and that it stays gone."""

import json
import time

import pytest
from typer.testing import CliRunner

from kvcairn_service.cli import app
from kvcairn_service.cli_values import parse_moment
from service_caller import Caller
from service_samples import STATE, chain, chain_records, fingerprint, layout_document, missing, split
from serving import running_service

ADMIN = "admin-secret-token"
FOREVER = 4e9


class Engine:
    """Somebody with a token of their own at a tenant, who stores blocks of one prompt."""

    def __init__(self, caller, document):
        self.caller, self.document = caller, document
        self.writer = caller.http.headers["authorization"].split("_")[1]

    def store(self, keys, blocks, *, states=()):
        records = chain_records(self.document, keys)
        at_ends = chain_records(self.document, keys, kind=STATE)
        body = b"".join([*(records[block] for block in blocks), *(at_ends[block] for block in states)])
        answer = self.caller.store(body).json()
        assert answer["rejected"] == []
        return answer


@pytest.fixture
def fleet(tenant_caller, admin):
    """Two engines of one tenant, a bad and a good one, on a layout and a tenant of their own."""

    def make(name):
        document = layout_document()
        bad, good = Engine(tenant_caller(name), document), Engine(tenant_caller(name), document)
        assert bad.caller.register(document).status_code == 201
        return bad, good, chain(document, 6)

    return make


def purge(admin, **asked):
    answer = admin.http.post("/v1/records:purge", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def writers(admin, tenant):
    answer = admin.http.get(f"/v1/tenants/{tenant}/writers")
    assert answer.status_code == 200
    return {each["writer"]: each["records"] for each in answer.json()["writers"]}


def depth(engine, keys):
    return engine.caller.lookup(engine.document, keys).json()["history_blocks"]


def test_a_bad_writer_is_undone_with_what_others_computed_from_it_and_nothing_else(fleet, admin):
    bad, good, keys = fleet("undone")
    stranger, _, _ = fleet("undone-not")
    assert stranger.caller.register(bad.document).status_code == 201
    stranger.document = bad.document
    stranger.store(keys, range(6))
    good.store(keys, range(2), states=[1])
    bad.store(keys, [2], states=[2])
    good.store(keys, [3, 4, 5], states=[5])
    other_prompt = chain(bad.document, 3, seed=7)
    good.store(other_prompt, range(3))
    sizes = {"records": 6, "descendants": 4, "stored_bytes": 4 * (128 + 32) + 2 * (128 + 24)}
    assert purge(admin, tenant="undone", writer=bad.writer, dry_run=True) == sizes
    assert depth(good, keys) == 6
    assert purge(admin, tenant="undone", writer=bad.writer) == sizes
    assert depth(good, keys) == 2
    asked = [("history", keys[2]), ("history", keys[4]), ("state", keys[2]), ("state", keys[5])]
    assert good.caller.exists(good.document, *asked) == [False] * 4
    fetched = split(good.caller.fetch(good.document, *asked).content)
    assert fetched[:2] == [missing(good.document, 1, keys[2]), missing(good.document, 1, keys[4])]
    assert good.caller.http.get(good.caller.path(good.document, "history", keys[4])).status_code == 404
    assert (depth(good, other_prompt), depth(stranger, keys)) == (3, 6)
    assert good.store(keys, range(6))["stored"] == 4, "what is computed anew is stored anew"
    assert depth(good, keys) == 6


def test_a_record_keeps_its_first_writer_and_a_revoked_token_stays_named(fleet, admin):
    bad, good, keys = fleet("revoked")
    bad.store(keys, range(2))
    assert good.store(keys, range(3)) == {"stored": 1, "present": 2, "rejected": []}
    assert admin.http.delete(f"/v1/tenants/revoked/tokens/{bad.writer}").status_code == 204
    assert writers(admin, "revoked") == {bad.writer: 2, good.writer: 1}
    path = f"/v1/tenants/revoked/records/{fingerprint(bad.document).hex()}/history/"
    first, last = (admin.http.get(path + keys[block].hex()).json() for block in (0, 2))
    assert (first["writer"], last["writer"]) == (bad.writer, good.writer)
    assert abs(last["stored"] - time.time()) < 600
    assert (first["position"], first["parent"], last["position"]) == (8, "0" * 32, 24)
    assert admin.http.get(path + "0" * 64).status_code == 404
    assert purge(admin, tenant="revoked", writer=bad.writer)["records"] == 3


def test_one_record_that_is_put_has_a_writer_too_and_so_have_the_admin_and_everybody(fleet, admin, caller):
    bad, _, keys = fleet("single")
    (record,) = chain_records(bad.document, keys[:1])
    path = bad.caller.path(bad.document, "history", keys[0])
    headers = {"content-type": "application/octet-stream"}
    assert bad.caller.http.put(path, content=record, headers=headers).status_code == 201
    assert writers(admin, "single") == {bad.writer: 1}
    for who, expected in ((admin, "admin"), (caller, "open")):
        who.register(bad.document)
        who.store(record)
        found = who.http.get(path.replace("/v1/records", "/v1/tenants/default/records"))
        assert found.json()["writer"] == expected


def test_time_and_layout_choose_what_is_named(fleet, admin):
    bad, good, keys = fleet("timely")
    other = Engine(good.caller, layout_document())
    other.caller.register(other.document)
    other_keys = chain(other.document, 2)
    bad.store(keys, range(2))
    path = f"/v1/tenants/timely/records/{fingerprint(bad.document).hex()}/history/"
    before = admin.http.get(path + keys[1].hex()).json()["stored"]
    good.store(keys, range(2, 6))
    other.store(other_keys, range(2))
    since = admin.http.get(path + keys[2].hex()).json()["stored"]
    assert since > before
    of_layout = fingerprint(bad.document).hex()
    assert purge(admin, tenant="timely", until=before, dry_run=True)["records"] == 0, "until is the first moment after"
    assert purge(admin, tenant="timely", since=since, layout=of_layout, dry_run=True)["records"] == 4
    assert purge(admin, tenant="timely", since=since, dry_run=True)["records"] == 6
    assert purge(admin, tenant="timely", since=before, until=since, descendants=False, dry_run=True)["records"] == 2
    assert purge(admin, tenant="timely", since=since, layout=of_layout)["records"] == 4
    assert (depth(good, keys), depth(other, other_keys)) == (2, 2)


@pytest.mark.parametrize(
    ("asked", "status", "named"),
    [
        ({"tenant": "default"}, 422, "since 0 is all"),
        ({"writer": "x"}, 422, "tenant"),
        ({"tenant": "nobody-of-that-name", "writer": "x"}, 404, "nobody-of-that-name"),
        ({"tenant": "default", "layout": "0" * 64}, 404, "is not registered"),
        ({"tenant": "default", "layout": "x"}, 422, "layout"),
        ({"tenant": "default", "writer": "x" * 33}, 422, "writer"),
        ({"tenant": "default", "writer": ""}, 422, "writer"),
        ({"tenant": "default", "since": -1}, 422, "since"),
        ({"tenant": "default", "since": 2, "until": 2}, 422, "since is before until"),
        ({"tenant": "default", "since": "2h"}, 422, "since"),
        ({"tenant": "default", "writer": "x", "descendents": False}, 422, "descendents"),
        ({"tenant": "default", "writer": "x", "dry_run": 1}, 422, "dry_run"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_deletes_nothing(admin, asked, status, named):
    document = layout_document()
    admin.register(document)
    keys = chain(document, 2)
    admin.store(b"".join(chain_records(document, keys)))
    answer = admin.http.post("/v1/records:purge", json=asked)
    assert answer.status_code == status
    assert named in answer.json()["detail"]
    assert admin.lookup(document, keys).json()["history_blocks"] == 2


def test_only_the_admin_learns_of_writers_or_purges(fleet):
    bad, _, keys = fleet("curious")
    bad.store(keys, range(2))
    record = f"/v1/tenants/curious/records/{fingerprint(bad.document).hex()}/history/{keys[0].hex()}"
    http = bad.caller.http
    assert http.get("/v1/tenants/curious/writers").status_code == 403
    assert http.get(record).status_code == 403
    assert http.post("/v1/records:purge", json={"tenant": "curious", "since": 0}).status_code == 403
    assert depth(bad, keys) == 2


def test_what_was_purged_is_counted_and_noted(fleet, admin, closed_service):
    bad, _, keys = fleet("purged-and-counted")
    bad.store(keys, range(6), states=[5])
    label = fingerprint(bad.document).hex()[:12]
    purge(admin, tenant="purged-and-counted", writer=bad.writer)
    kinds = bad.caller.http.get("/v1/stats").json()["kinds"]
    assert [(each["kind"], each["records"], each["purged_records"]) for each in kinds] == [
        ("history", 0, 6), ("state", 0, 1),
    ]  # fmt: skip
    assert admin.metric("kvcairn_purged_records_total", tenant="purged-and-counted", layout=label, kind="history") == 6
    (line,) = (line for line in closed_service.log().splitlines() if "records.purge" in line and bad.writer in line)
    noted = json.loads(json.loads(line)["message"].removeprefix("audit "))
    assert noted.items() >= {
        "who": "admin", "action": "records.purge", "tenant": "purged-and-counted", "writer": bad.writer, "records": 7,
        "outcome": "done",
    }.items()  # fmt: skip


def test_what_was_purged_stays_gone_after_a_kill_and_the_writers_of_the_rest_are_known(tmp_path):
    document = layout_document()
    keys = chain(document, 4)
    records = chain_records(document, keys)
    with running_service(tmp_path / "data", env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as service:
        with service.http(token=ADMIN) as http:
            http.put("/v1/tenants/t", json={})
            tokens = [http.post("/v1/tenants/t/tokens").json() for _ in range(2)]
            for made, blocks in zip(tokens, (records[:2], records[2:]), strict=True):
                with service.http(token=made["token"]) as own:
                    engine = Caller(own)
                    engine.register(document)
                    assert engine.store(b"".join(blocks)).json()["stored"] == 2
            assert http.delete(f"/v1/tenants/t/tokens/{tokens[0]['id']}").status_code == 204
            purged = purge(Caller(http), tenant="t", writer=tokens[1]["id"])
            assert purged["records"] == 2
        service.kill()
    with running_service(tmp_path / "data", env={"KVCAIRN_ADMIN_TOKEN": ADMIN}) as service:
        with service.http(token=tokens[1]["token"]) as own:
            assert Caller(own).lookup(document, keys).json()["history_blocks"] == 2
        with service.http(token=ADMIN) as http:
            assert writers(Caller(http), "t") == {tokens[0]["id"]: 2}


class TestCommands:
    """`kvcairn purge`, `kvcairn tenants writers` and `kvcairn tenants record`."""

    @pytest.fixture
    def kvcairn(self, monkeypatch, closed_service):
        monkeypatch.setenv("KVCAIRN_URL", closed_service.url)
        monkeypatch.setenv("KVCAIRN_TOKEN", ADMIN)
        monkeypatch.setenv("COLUMNS", "200")

        def run(*args, **options):
            return CliRunner().invoke(app, list(args), **options)

        return run

    def test_an_operator_finds_the_writer_previews_and_purges(self, kvcairn, fleet):
        bad, good, keys = fleet("by-hand")
        bad.store(keys, range(2))
        good.store(keys, [2, 3])
        table = kvcairn("tenants", "writers", "by-hand").stdout
        assert table.index(good.writer) < table.index(bad.writer), "the last to store comes first"
        layout = fingerprint(bad.document).hex()
        assert f"stored by {bad.writer} at 20" in kvcairn(
            "tenants", "record", "by-hand", layout, "history", keys[0].hex()
        ).stdout  # fmt: skip
        named = ("purge", "--tenant", "by-hand", "--writer", bad.writer)
        told = "4 records (640 B) would go, 2 of them for what they were computed from"
        assert told in kvcairn(*named, "--dry-run").stdout
        declined = kvcairn(*named, input="n\n")
        assert declined.exit_code == 1
        assert told in declined.stderr
        assert depth(good, keys) == 4
        assert json.loads(kvcairn(*named, "--named-only", "--dry-run", "--json").stdout)["records"] == 2
        done = kvcairn(*named, "--since", "1h", input="y\n")
        assert (done.exit_code, "4 records (640 B) are gone" in done.stdout) == (0, True)
        assert depth(good, keys) == 0

    @pytest.mark.parametrize(
        ("args", "named"),
        [
            (("purge", "--tenant", "default"), "name a writer, a layout, or a time"),
            (("purge", "--tenant", "default", "--since", "yesterday"), "a moment is written 2h"),
            (("purge", "--tenant", "default", "--since", "2026-07-01T12:00"), "names its time zone"),
            (("purge", "--tenant", "default", "--layout", "abc"), "64 lower-case hex digits"),
            (("purge", "--tenant", "../default", "--since", "0"), "a tenant's name has"),
            (("tenants", "record", "default", "0" * 64, "page", "0" * 64), "history, state or window"),
        ],
    )
    def test_what_cannot_be_read_says_how_it_is_written(self, kvcairn, args, named):
        refused = kvcairn(*args)
        assert refused.exit_code == 2
        assert named in " ".join(refused.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", FOREVER - 7200), ("30min", FOREVER - 1800), ("1.5d", FOREVER - 129_600), ("0", 0.0),
        ("1782907200", 1_782_907_200.0), ("2026-07-01T12:00Z", 1_782_907_200.0),
        ("2026-07-01T14:00+02:00", 1_782_907_200.0), ("999999w", 0.0),
    ],
)  # fmt: skip
def test_a_moment_is_read_as_people_write_it(text, seconds):
    assert parse_moment(text, FOREVER) == seconds
