"""The command `kvcairn`, as a person and as a script meet it."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from kvcairn_protocol.messages import KindStats, ServiceStats, TenantStats
from kvcairn_service.cli import app
from kvcairn_service.cli_admin import draw_service, draw_tenant
from kvcairn_service.cli_output import print_table
from service_caller import Caller
from service_samples import chain, chain_records, fingerprint, layout_document
from serving import running_service


@pytest.fixture
def kvcairn(monkeypatch, closed_service):
    """Run a command against the closed service, as its admin; further environment in `env`."""
    monkeypatch.setenv("KVCAIRN_URL", closed_service.url)
    monkeypatch.setenv("KVCAIRN_TOKEN", "admin-secret-token")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args, **options):
        return CliRunner().invoke(app, list(args), **options)

    return run


def test_help_lists_the_commands_and_teaches_by_examples(kvcairn):
    text = kvcairn("--help").output
    assert all(name in text for name in ("serve", "stats", "tenants", "layouts", "check", "backup", "version"))
    for command in (("serve",), ("stats",), ("tenants", "set"), ("check",), ("backup",)):
        assert "kvcairn " + " ".join(command) in kvcairn(*command, "--help").output


def test_version_is_one_line_however_it_is_asked_for(kvcairn):
    (version,) = kvcairn("version").output.splitlines()
    assert kvcairn("--version").output.splitlines() == [version]


def test_tenants_are_made_changed_listed_and_removed(kvcairn):
    made = kvcairn("tenants", "set", "cli", "--strategy", "periodic:4096", "--quota", "10GiB", "--ttl", "7d", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout) == {
        "name": "cli", "strategy": {"kind": "periodic", "every_tokens": 4096}, "codec": "auto",
        "quota_bytes": 10 << 30, "ttl_seconds": 604_800.0, "pin_quota_bytes": None, "encrypt": False,
    }  # fmt: skip
    changed = json.loads(kvcairn("tenants", "set", "cli", "--quota", "none", "--codec", "zstd", "--json").stdout)
    assert (changed["quota_bytes"], changed["codec"], changed["ttl_seconds"]) == (None, "zstd", 604_800.0)
    table = kvcairn("tenants", "list").stdout
    assert "periodic:4096" in table
    assert "7.0 d" in table
    names = [each["name"] for each in json.loads(kvcairn("tenants", "list", "--json").stdout)["tenants"]]
    assert "cli" in names
    assert kvcairn("tenants", "remove", "cli", input="n\n").exit_code == 1
    assert kvcairn("tenants", "remove", "cli", "--yes").exit_code == 0
    assert "cli" not in kvcairn("tenants", "list").stdout


def test_a_token_is_shown_once_works_and_can_be_revoked(kvcairn):
    kvcairn("tenants", "set", "holder")
    token = kvcairn("tenants", "token", "make", "holder").stdout.strip()
    assert json.loads(kvcairn("stats", "--token", token, "--json").stdout)["tenant"] == "holder"
    listed = kvcairn("tenants", "token", "list", "holder", "--json")
    assert token not in listed.stdout
    (entry,) = json.loads(listed.stdout)["tokens"]
    assert kvcairn("tenants", "token", "revoke", "holder", entry["id"]).exit_code == 0
    refused = kvcairn("stats", "--token", token)
    assert refused.exit_code == 1
    assert "401" in refused.stderr


def test_stats_and_layouts_are_tables_for_people_and_json_for_machines(kvcairn, admin):
    document = layout_document()
    admin.register(document)
    keys = chain(document, 3)
    admin.store(b"".join(chain_records(document, keys)))
    admin.lookup(document, keys)
    assert fingerprint(document).hex() in kvcairn("layouts").stdout
    listed = json.loads(kvcairn("layouts", "--json").stdout)["layouts"]
    assert fingerprint(document).hex() in {each["fingerprint"] for each in listed}
    table = kvcairn("stats").stdout
    assert fingerprint(document).hex()[:12] in table
    assert "history" in table
    everyone = json.loads(kvcairn("stats", "--all", "--json").stdout)
    assert "default" in {each["tenant"] for each in everyone["tenants"]}
    assert "default" in kvcairn("stats", "--all").stdout


@pytest.mark.parametrize(
    ("args", "status", "named"),
    [
        (("stats", "--url", "http://127.0.0.1:1"), 1, "kvcairn serve"),
        (("stats", "--url", "unix:/nowhere/at/all"), 1, "kvcairn serve"),
        (("stats", "--url", "ftp://x"), 2, "unix:/PATH"),
        (("stats", "--token", "wrong"), 1, "401"),
        (("stats", "--url", "http://h:port"), 2, "port"),
        (("stats", "--url", "http://user@h"), 2, "user"),
        (("stats", "--url", "http://"), 2, "HOST:PORT"),
        (("stats", "--url", "unix:relative.sock"), 2, "absolute"),
        (("stats", "--token", "ü"), 2, "token"),
        (("stats", "--token", "two\nlines"), 2, "token"),
        (("tenants", "remove", "nobody", "--yes"), 1, "404"),
        (("tenants", "remove", "default", "--yes"), 1, "409"),
        (("check", "/nowhere/at/all"), 2, "/nowhere/at/all"),
        (("serve", "--config", "/nowhere.toml"), 2, "/nowhere.toml"),
        (("serve",), 2, "--data"),
    ],
)
def test_what_goes_wrong_is_one_line_on_stderr(kvcairn, args, status, named):
    done = kvcairn(*args)
    assert done.exit_code == status, done.output
    assert named in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


UNREADABLE = [
    ("--strategy", "often"),
    ("--strategy", "periodic"),
    ("--strategy", "periodic:x"),
    ("--quota", "lots"),
    ("--ttl", "soon"),
]


@pytest.mark.parametrize("args", UNREADABLE)
def test_values_that_cannot_be_read_say_how_they_are_written(kvcairn, args):
    done = kvcairn("tenants", "set", "x", *args)
    assert done.exit_code == 2
    assert "found" in done.stderr


NAMES = ["UPPER", "r1?x=1", "r1/../default", "..", "", "a" * 64, "r1#x", "r1%2f"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_tenants_name_reaches_no_tenant(kvcairn, name):
    before = kvcairn("tenants", "list", "--json").stdout
    for command in (("set", name, "--codec", "raw"), ("remove", name, "--yes"), ("token", "make", name)):
        done = kvcairn("tenants", *command)
        assert done.exit_code == 2
        assert "lower-case" in done.stderr
    assert kvcairn("tenants", "list", "--json").stdout == before


def test_what_is_no_tokens_id_reaches_no_tenant(kvcairn):
    kvcairn("tenants", "set", "bystander")
    assert kvcairn("tenants", "token", "revoke", "bystander", "..").exit_code == 2
    assert "bystander" in kvcairn("tenants", "list").stdout


def test_no_proxy_of_the_environment_is_told_the_token(kvcairn, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert kvcairn("stats").exit_code == 0


def large_stats(tenant):
    """Statistics with long numbers everywhere."""
    kinds = [
        KindStats(
            layout="ab12" * 16, kind=kind, records=1_234_567, raw_bytes=1023 << 30, stored_bytes=1000 << 30,
            reused_records=123_456, uses=1_234_567, evicted_records=7_654_321, evicted_bytes=1023 << 40,
            expired_records=123_456, quarantined_records=3, deleted_records=3, oldest_seconds=8_640_000.0,
            idle_seconds=3500.0,
        )
        for kind in ("history", "state", "window")
    ]  # fmt: skip
    return TenantStats(
        tenant=tenant, records=1_234_567, raw_bytes=1 << 40, stored_bytes=1000 << 30, charged_bytes=1000 << 30,
        quota_bytes=1023 << 30, lookups=1_234_567, asked_tokens=123_456_789_012, hit_tokens=9_876_543_210, kinds=kinds,
        layouts=[],
    )  # fmt: skip


def test_statistics_fit_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    tenants = [large_stats(name) for name in ("agents", "research")]
    every = ServiceStats(
        generation="g", uptime_seconds=1e6, capacity_bytes=1 << 41, charged_bytes=1 << 40, tenants=tenants
    )
    draw_tenant(tenants[0])
    draw_service(every)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [sum(line.startswith(start) for line in lines) for start in ("ab12ab12ab12  ", "agents  ")] == [6, 1]
    for value in ("1234567", "1000.0 GiB", "123456", "100.0 d", "58.3 min", "1023.0 TiB", "123456789012", "8.0 %"):
        assert value in "\n".join(lines)


def test_no_table_cuts_or_folds_an_id_however_narrow_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    ids = ["0123456789abcdef" * 4, "fedcba9876543210" * 4]
    print_table("Ids", ["layout", "model"], [[each, "a-model-of-many-words@" + each] for each in ids])
    lines = capsys.readouterr().out.splitlines()
    assert [sum(each in line and f"@{each}" in line for line in lines) for each in ids] == [1, 1]


def test_a_unix_socket_is_a_url_too(kvcairn, open_service):
    done = kvcairn("stats", "--json", "--url", open_service.uds_url)
    assert json.loads(done.stdout)["tenant"] == "default"


def test_check_and_backup_work_beside_a_running_service_and_find_damage(kvcairn, tmp_path):
    with running_service(tmp_path / "data") as service, service.http() as http:
        caller = Caller(http)
        document = layout_document(history_bytes=100_000)
        caller.register(document)
        keys = chain(document, 3)
        records = chain_records(document, keys)
        caller.store(b"".join(records))
        checked = kvcairn("check", str(tmp_path / "data"))
        assert checked.exit_code == 0
        assert "3 records checked, 0 faults" in checked.stdout
        copied = kvcairn("backup", str(tmp_path / "data"), str(tmp_path / "copy"), "--json")
        assert json.loads(copied.stdout)["records"] == 3
        again = kvcairn("backup", str(tmp_path / "data"), str(tmp_path / "copy"))
        assert again.exit_code == 2
        assert "not empty" in again.stderr
        generation = http.get("/v1/service").json()["generation"]
    with running_service(tmp_path / "copy") as service, service.http() as http:
        assert Caller(http).fetch(document, *[("history", key) for key in keys]).content == b"".join(records)
        assert http.get("/v1/service").json()["generation"] != generation
    shutil.copytree(tmp_path / "copy", tmp_path / "bad")
    data = bytearray((tmp_path / "bad" / "data.mdb").read_bytes())
    data[data.index(records[1][128:4000]) + 2000] ^= 1
    (tmp_path / "bad" / "data.mdb").write_bytes(data)
    found = kvcairn("check", str(tmp_path / "bad"), "--json")
    assert found.exit_code == 1
    report = json.loads(found.stdout)
    assert report["records"] == 3
    assert len(report["faults"]) == 1
    assert keys[1].hex() in report["faults"][0]
