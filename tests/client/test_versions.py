"""A client and a service of different versions: what a newer one adds is ignored, another API is refused by name.

And a data directory of a format that this version does not know is fetched past, over the network.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.errors import BadAnswer
from kvcairn_client.failopen import FailOpen
from kvcairn_client.faults import Answer, Fault, answer, instead
from kvcairn_client.records import Ref
from kvcairn_client.testing import FakeService
from kvcairn_service.cli import app
from serving import running_service

LAYOUT = samples.layout()
RECORDS = samples.prompt(LAYOUT, 4, states=[3])
PATHS = ("/v1/service", "/v1/prefixes:lookup", "/v1/records:store", "/v1/prefixes:touch", "/v1/records:exists")


def amended(**changes: Any) -> Fault:
    """The honest answer with some members changed or added."""

    def fault(given: Answer) -> Iterator[bytes]:
        body = json.dumps({**json.loads(given.body), **changes}).encode()
        changed = answer(200, "application/json", body)
        yield changed.head + changed.body

    return fault


def loaded(client: Client | FailOpen) -> list[bool]:
    wishes, buffers = samples.wanted(LAYOUT, RECORDS)
    found = client.fetch(LAYOUT, wishes).loaded
    assert all(bytes(buffer) == record.payload for buffer, record in zip(buffers, RECORDS, strict=True) if any(found))
    return found


def test_what_a_newer_service_adds_to_its_answers_is_ignored(service: FakeService) -> None:
    with Client(service.url) as plain:
        plain.store(LAYOUT, RECORDS)
    for path in PATHS:
        service.faults[path] = amended(added_later={"deep": [1, None]}, features=["teleport"], version="99.0")
    with Client(service.url) as client:
        assert client.service().features == ["teleport"]
        assert client.lookup(LAYOUT, samples.keys(5)).history_blocks == 4
        assert loaded(client) == [True] * 5
        assert client.store(LAYOUT, RECORDS).present == 5
        assert client.touch(LAYOUT, block_keys=samples.keys(4)) == 4
        assert client.exists(LAYOUT, [Ref(RECORDS[0].kind, RECORDS[0].key)]) == [True]


def test_what_an_older_service_leaves_out_is_none(service: FakeService) -> None:
    with Client(service.url) as client:
        info = client.service().model_dump()
        del info["tenant_id"]
        old = answer(200, "application/json", json.dumps(info).encode())
        service.faults["/v1/service"] = instead(old)
        assert client.service().tenant_id is None


def test_another_version_of_the_api_is_refused_by_name_and_costs_the_engine_hits_alone(service: FakeService) -> None:
    with Client(service.url) as plain:
        plain.store(LAYOUT, RECORDS)
        assert loaded(plain) == [True] * 5
    service.faults["/v1/service"] = amended(api=2, version="9.1")
    with Client(service.url) as client:
        with pytest.raises(BadAnswer, match=r"version 1 of the API, the service '9\.1' speaks 2; install"):
            client.lookup(LAYOUT, samples.keys(4))
        engine = FailOpen(client)
        assert not engine.lookup(LAYOUT, samples.keys(4)).answered
        assert loaded(engine) == [False] * 5
        assert engine.store(LAYOUT, RECORDS).stored == 0
        assert "speaks 2" in str(engine.last_fault)
    assert not [line for line in service.seen[-20:] if line.endswith(":store")][1:], "nothing was sent to it"


@pytest.mark.parametrize("command", [("stats",), ("tenants", "list"), ("purge", "--tenant", "t", "--since", "0")])
def test_a_command_says_which_versions_do_not_understand_each_other(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Of a service whose API is another, answers may have any shape."""
    strange = answer(200, "application/json", b'{"another": "shape"}')
    for path in ("/v1/stats", "/v1/tenants", "/v1/records:purge"):
        service.faults[path] = instead(strange)
    service.faults["/v1/service"] = amended(api=2, version="9.1")
    monkeypatch.setenv("KVCAIRN_URL", service.url)
    ended = CliRunner().invoke(app, [*command, *(["--yes"] if command[0] == "purge" else [])])
    assert ended.exit_code == 1
    assert "speaks version 2 of the API (kvcairn 9.1), this command version 1" in ended.stderr


def test_an_attached_directory_of_an_unknown_format_is_fetched_past(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an older client meets it, when the service has been upgraded: a fetch over the network, never a failure."""
    other = tmp_path / "other"
    with running_service(tmp_path / "data") as process:
        with Client(process.url) as client:
            client.store(LAYOUT, RECORDS)
        shutil.copytree(tmp_path / "data", other)
        identity = json.loads((other / "kvcairn.json").read_text())
        for number, mapped in ((1, True), (2, True), (0, False), (3, False)):
            (other / "kvcairn.json").write_text(json.dumps({**identity, "format": number}))
            with caplog.at_level(logging.WARNING), Client(process.url, attach=other) as attached:
                result = attached.fetch(LAYOUT, samples.wanted(LAYOUT, RECORDS)[0])
            assert (result.loaded, result.bytes_mapped > 0, number) == ([True] * 5, mapped, number)
            told = f"has data format {number}, and this version of kvcairn reads 1 and 2"
            assert (told in caplog.text) is not mapped
