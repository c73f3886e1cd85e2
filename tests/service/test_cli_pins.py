"""`kvcairn pins`, as a person and as a script meet it."""

import json

import pytest
from typer.testing import CliRunner

from kvcairn_service.cli import app
from service_samples import chain, chain_records, fingerprint, layout_document

PAGE = 4096


@pytest.fixture
def pinner(monkeypatch, closed_service, tenant_caller, admin):
    """A tenant with three stored blocks, the file that names them, and the commands with its token."""
    tenant = tenant_caller("commanded", pin_quota_bytes=8 * PAGE)
    document = layout_document()
    tenant.register(document)
    keys = chain(document, 3)
    tenant.store(b"".join(chain_records(document, keys)))
    prefix = json.dumps({"layout": fingerprint(document).hex(), "block_keys": [key.hex() for key in keys]})
    token = tenant.http.headers["authorization"].removeprefix("Bearer ")

    def run(*arguments, **options):
        env = {"KVCAIRN_URL": closed_service.url, "KVCAIRN_TOKEN": token, "COLUMNS": "160"}
        return CliRunner().invoke(app, ["pins", *arguments], env=env, **options)

    yield run, prefix
    admin.http.delete("/v1/tenants/commanded")


def test_pins_are_made_from_a_file_or_a_pipe_listed_renewed_and_removed(pinner, tmp_path):
    run, prefix = pinner
    place = tmp_path / "system-prompt.json"
    place.write_text(prefix)
    made = run("make", str(place), "--ttl", "7d", "--name", "system-prompt", "--json")
    assert made.exit_code == 0, made.output
    pin = json.loads(made.stdout)
    assert (pin["name"], pin["history_blocks"], pin["charged_bytes"]) == ("system-prompt", 3, 3 * PAGE)
    renewed = json.loads(run("make", "-", "--ttl", "8d", "--name", "system-prompt", "--json", input=prefix).stdout)
    assert (renewed["id"], renewed["expires"] - renewed["created"]) == (pin["id"], 8 * 86_400)
    table = run("list").stdout
    assert "12.0 KiB pinned of 32.0 KiB" in table
    assert all(text in table for text in (pin["id"], "system-prompt", "3/3", "8.0 d"))
    assert json.loads(run("list", "--json").stdout)["pins"] == [renewed]
    assert run("remove", pin["id"]).exit_code == 0
    again = run("remove", pin["id"])
    assert again.exit_code == 1
    assert "404" in again.output
    assert json.loads(run("list", "--json").stdout)["pins"] == []


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        ("no json", ("--ttl", "1d"), "is no"),
        ('{"layout": "x", "block_keys": []}', ("--ttl", "1d"), "layout"),
        (None, (), "--ttl"),
        (None, ("--ttl", "none"), "a pin has an end"),
        (None, ("--ttl", "soon"), "7d, 12h"),
        (None, ("--ttl", "1d", "--name", "Not A Name"), "found 'Not A Name'"),
    ],
)
def test_what_is_no_prefix_or_has_no_end_is_refused_before_anything_is_sent(pinner, text, flags, told):
    run, prefix = pinner
    refused = run("make", "-", *flags, input=prefix if text is None else text)
    assert refused.exit_code == 2
    assert told in refused.output
    assert json.loads(run("list", "--json").stdout)["pins"] == []


def test_a_file_that_is_not_there_and_an_id_that_is_none_are_told(pinner, tmp_path):
    run, _ = pinner
    missing = run("make", str(tmp_path / "nothing.json"), "--ttl", "1d")
    assert missing.exit_code == 2
    assert "nothing.json cannot be read" in missing.output
    assert run("remove", "../tenants").exit_code == 2
