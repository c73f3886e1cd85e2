"""The command `kvcairn`, as a person and as a script meet it."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from kvcairn_service.cli import app
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


def test_version_is_one_line(kvcairn):
    assert len(kvcairn("version").output.splitlines()) == 1


def test_tenants_are_made_changed_listed_and_removed(kvcairn):
    made = kvcairn("tenants", "set", "cli", "--strategy", "periodic:4096", "--quota", "10GiB", "--ttl", "7d", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout) == {
        "name": "cli", "strategy": {"kind": "periodic", "every_tokens": 4096}, "codec": "auto",
        "quota_bytes": 10 << 30, "ttl_seconds": 604_800.0,
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
        (("tenants", "set", "UPPER"), 1, "422"),
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
