"""Encryption at rest by a real service: what the disk shows, what another key or a lost one costs, what is refused."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import client_samples
from kvcairn_client.client import Client
from kvcairn_client.mac_keys import MacKeys
from kvcairn_service.app import open_service
from kvcairn_service.cli import app
from kvcairn_service.errors import SettingsError
from kvcairn_service.key_settings import ring_of_environment
from kvcairn_service.settings import load_settings
from kvcairn_service.stores import open_stores
from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.store import Put, RecordKey
from service_caller import Caller
from service_samples import HISTORY, chain, chain_records, layout_document, missing, record, split
from serving import ServiceProcess, running_service

OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
BLOCKS = 8
WAIT_SECONDS = 20


def environment(*keys: bytes) -> dict[str, str]:
    return {"KVCAIRN_ENCRYPTION_KEY": "\n".join(key.hex() for key in keys)} if keys else {}


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Prompt:
    """Some blocks of one layout, and what they hold: a marker of this prompt's own, over and over."""

    def __init__(self, *, blocks: int = BLOCKS, history_bytes: int = 5000) -> None:
        self.marker = uuid.uuid4().hex.encode()
        self.document = layout_document(history_bytes=history_bytes)
        self.keys = chain(self.document, blocks)
        payloads = [(self.marker + b" %d " % index) * (history_bytes // 32) for index in range(blocks)]
        self.records = [
            record(
                self.document, HISTORY, key, position=(index + 1) * 8,
                parent=self.keys[index - 1][:16] if index else bytes(16), payload=payloads[index][:history_bytes],
            )
            for index, key in enumerate(self.keys)
        ]  # fmt: skip

    def store(self, caller: Caller) -> int:
        assert caller.register(self.document).is_success
        answer = caller.store(b"".join(self.records)).json()
        assert answer["rejected"] == []
        return int(answer["stored"])

    def fetched(self, caller: Caller) -> list[bytes]:
        return split(caller.fetch(self.document, *(("history", key) for key in self.keys)).content)

    def lookup(self, caller: Caller) -> int:
        return int(caller.lookup(self.document, self.keys).json()["history_blocks"])


def encrypt(caller: Caller, *, value: bool = True) -> Any:
    return caller.http.patch("/v1/tenants/default", json={"encrypt": value})


def on_disk(data: Path) -> bytes:
    return (data / "data.mdb").read_bytes()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encrypted") / "data"


@pytest.fixture(scope="module")
def process(data: Path) -> Iterator[ServiceProcess]:
    with running_service(data, "--uds", f"{data}.socket", env=environment(NEW)) as running:
        yield running


@pytest.fixture
def caller(process: ServiceProcess) -> Iterator[Caller]:
    with process.http() as http:
        yield Caller(http)


def test_what_is_stored_comes_back_and_the_disk_shows_nothing_of_it(caller: Caller, data: Path) -> None:
    plain, secret = Prompt(), Prompt()
    for value, prompt in ((True, secret), (False, plain)):
        assert encrypt(caller, value=value).json()["encrypt"] is value
        if prompt is plain:
            assert secret.marker not in on_disk(data)
        assert prompt.store(caller) == BLOCKS
        assert prompt.fetched(caller) == prompt.records
        for key, stored in zip(prompt.keys, prompt.records, strict=True):
            got = caller.http.get(caller.path(prompt.document, "history", key))
            assert (got.status_code, got.content) == (200, stored)
    assert plain.marker in on_disk(data), "the search finds what is there"


def test_pages_that_are_freed_and_used_again_show_nothing_either(caller: Caller, data: Path) -> None:
    assert encrypt(caller).is_success
    prompts = [Prompt() for _ in range(4)]
    for prompt in prompts:
        prompt.store(caller)
        assert caller.http.delete(f"/v1/layouts/{layout_name(prompt)}").status_code == 204
    found = on_disk(data)
    assert not any(prompt.marker in found for prompt in prompts)


def layout_name(prompt: Prompt) -> str:
    return str(Caller.path(prompt.document, "history", bytes(32)).split("/")[3])


def test_a_record_is_charged_for_what_encryption_adds(caller: Caller) -> None:
    """A payload that fills its pages to the byte takes one more when it is encrypted."""
    charged = []
    for value in (False, True):
        assert encrypt(caller, value=value).is_success
        prompt = Prompt(blocks=1, history_bytes=2 * 4096 - 16 - 128)
        before = caller.http.get("/v1/stats/all").json()["charged_bytes"]
        assert prompt.store(caller) == 1
        charged.append(caller.http.get("/v1/stats/all").json()["charged_bytes"] - before)
    assert charged == [8192, 12288]


def test_an_attached_client_gets_them_over_the_socket(process: ServiceProcess, caller: Caller, data: Path) -> None:
    assert encrypt(caller).is_success
    layout = client_samples.layout("org/attached-and-encrypted")
    records = client_samples.prompt(layout, 6, states=[2])
    with Client(process.uds_url, attach=data) as client:
        client.store(layout, records)
        wishes, buffers = client_samples.wanted(layout, records)
        result = client.fetch(layout, wishes)
        assert (result.loaded, result.bytes_mapped) == ([True] * 7, 0)
        assert [bytes(buffer) for buffer in buffers] == [each.payload for each in records]


def test_records_with_a_mac_can_be_encrypted_as_well(process: ServiceProcess, caller: Caller) -> None:
    assert encrypt(caller).is_success
    keys = MacKeys([bytes(range(32))])
    layout = keys.authenticated(client_samples.layout("org/both"))
    records = client_samples.prompt(layout, 3, states=[2])
    with Client(process.url, mac_key=keys.keys) as client:
        assert client.store(layout, records).stored == 4
        assert client.fetch(layout, client_samples.wanted(layout, records)[0]).loaded == [True] * 4


def test_states_and_windows_are_encrypted_too(caller: Caller, data: Path) -> None:
    assert encrypt(caller).is_success
    document = layout_document(state_bytes=4000)
    keys = chain(document, 2)
    assert caller.register(document).is_success
    records = [each for kind in (1, 2, 3) for each in chain_records(document, keys, kind=kind)]
    assert caller.store(b"".join(records)).json()["stored"] == 6
    asked = [(kind, key) for kind in ("history", "state", "window") for key in keys]
    assert split(caller.fetch(document, *asked).content) == records
    found = on_disk(data)
    assert not any(each[128:160] in found for each in records)


def test_turning_it_on_encrypts_what_is_there_and_a_backup_holds_none_of_the_old_pages(tmp_path: Path) -> None:
    data, copy, prompt = tmp_path / "data", tmp_path / "copy", Prompt()
    with running_service(data, env=environment(NEW)) as service, service.http() as http:
        caller = Caller(http)
        prompt.store(caller)
        before = http.get("/v1/stats/all").json()["charged_bytes"]
        assert encrypt(caller).is_success
        eventually(lambda: "encrypted 8 values with the key that writes now" in service.log())
        assert prompt.fetched(caller) == prompt.records
        assert http.get("/v1/stats/all").json()["charged_bytes"] == before
        assert encrypt(caller, value=False).is_success
        assert prompt.fetched(caller) == prompt.records
        assert kvcairn("backup", data, copy).exit_code == 0
    assert prompt.marker in on_disk(data), "freed pages keep what they held"
    assert prompt.marker not in on_disk(copy)
    assert kvcairn("check", copy, env=environment(OTHER, NEW)).stdout == "8 records checked, 0 faults\n"
    without = kvcairn("check", copy, env=environment(OTHER))
    assert without.exit_code == 2
    assert "are encrypted with key" in without.stderr
    assert "let KVCAIRN_ENCRYPTION_KEY_FILE name a file that holds it" in " ".join(without.stderr.split())


def test_without_a_key_the_setting_is_refused_by_name(open_service: ServiceProcess) -> None:
    with open_service.http() as http:
        for method, path in (("PATCH", "default"), ("PUT", "secretive")):
            answer = http.request(method, f"/v1/tenants/{path}", json={"encrypt": True})
            assert answer.status_code == 422
            assert "encrypt: this service has no key for it; set KVCAIRN_ENCRYPTION_KEY_FILE" in answer.json()["detail"]
        assert http.get("/v1/tenants/default").json()["encrypt"] is False
        assert http.get("/v1/tenants/secretive").status_code == 404


def test_a_rotation_reads_the_old_values_and_rewrites_them_until_the_old_key_can_go(tmp_path: Path) -> None:
    data, keys, prompt = tmp_path / "data", tmp_path / "keys", Prompt()
    keys.write_text(f"{OLD.hex()}\n")
    named = {"KVCAIRN_ENCRYPTION_KEY_FILE": str(keys)}
    with running_service(data, env=named) as service, service.http() as http:
        caller = Caller(http)
        encrypt(caller)
        prompt.store(caller)
        keys.write_text("no key\n")
        os.kill(service.pid, signal.SIGHUP)
        eventually(
            lambda: "is no key; a key is hex, 64 digits (openssl rand -hex 32); the old keys stay" in service.log()
        )
        keys.write_text(f"# the new one first\n{NEW.hex()}\n{OLD.hex()}\n")
        os.kill(service.pid, signal.SIGHUP)
        eventually(lambda: "encrypted 8 values with the key that writes now" in service.log())
        assert prompt.fetched(caller) == prompt.records
        service.kill()
    assert kvcairn("check", data, env=environment(NEW)).stdout == "8 records checked, 0 faults\n"


def test_a_lost_key_costs_misses_which_the_next_store_mends(tmp_path: Path) -> None:
    data, prompt = tmp_path / "data", Prompt()
    with running_service(data, env=environment(OLD)) as service, service.http() as http:
        encrypt(Caller(http))
        prompt.store(Caller(http))
        service.kill()
    with pytest.raises(
        SettingsError, match="'default' has encrypt on, and there is no key: set KVCAIRN_ENCRYPTION_KEY_FILE"
    ):
        open_service(load_settings({"data": data}))
    with running_service(data, env=environment(OTHER)) as service, service.http() as http:
        caller, asked = Caller(http), [("history", key) for key in prompt.keys]
        assert prompt.lookup(caller) == 0
        assert caller.exists(prompt.document, *asked) == [False] * BLOCKS
        assert prompt.fetched(caller) == [missing(prompt.document, HISTORY, key) for key in prompt.keys]
        assert http.get(caller.path(prompt.document, "history", prompt.keys[0])).status_code == 404
        eventually(lambda: caller.metric("kvcairn_key_lost_records") == BLOCKS)
        report = {"layout": layout_name(prompt), "kind": "history", "key": prompt.keys[0].hex()}
        assert http.post("/v1/records:report", json=report).json() == {"quarantined": False}, "it may be good"
        assert caller.metric("kvcairn_quarantined_records_total") == 0
        charged = http.get("/v1/stats/all").json()["charged_bytes"]
        assert prompt.store(caller) == BLOCKS
        assert (prompt.lookup(caller), prompt.fetched(caller)) == (BLOCKS, prompt.records)
        assert http.get("/v1/stats/all").json()["charged_bytes"] == charged


def test_what_was_changed_or_moved_on_the_disk_is_a_miss_and_its_neighbours_are_served(tmp_path: Path) -> None:
    data = tmp_path / "data"
    layout = client_samples.layout("org/changed", row_bytes=4096)
    records = client_samples.prompt(layout, 8, states=[7])
    with running_service(data, env=environment(NEW)) as service, service.http() as http, Client(service.url) as client:
        assert encrypt(Caller(http)).is_success
        client.store(layout, records)
        tenant = str(client.service().tenant_id)
    _spoil(data, [RecordKey(tenant, layout.fingerprint, each.kind, each.key) for each in records])
    checked = kvcairn("check", data, env=environment(NEW, OLD))
    assert (checked.exit_code, checked.stdout.count("it does not decrypt"), checked.stdout.count("not among")) == (
        1,
        3,
        1,
    )
    with running_service(data, env=environment(NEW)) as service, service.http() as http, Client(service.url) as client:
        wishes, buffers = client_samples.wanted(layout, records)
        result = client.fetch(layout, wishes)
        assert result.fault is None
        assert result.loaded == [False, True, False, False, True, True, True, True, False]
        for is_loaded, buffer, each in zip(result.loaded, buffers, records, strict=True):
            assert not is_loaded or bytes(buffer) == each.payload
        assert Caller(http).metric("kvcairn_quarantined_records_total", kind="history") == 3
        assert client.store(layout, records).stored == 4
        assert client.fetch(layout, wishes).loaded == [True] * 9


def _spoil(data: Path, keys: list[RecordKey]) -> None:
    """Flip a bit of the first value, swap the third and the fourth, name another key in the last."""
    store = LmdbStore(data, map_bytes=64 << 20)
    values = [store.get(key) or b"" for key in keys]
    spoilt = {
        0: values[0][:1000] + bytes([values[0][1000] ^ 4]) + values[0][1001:],
        2: values[3],
        3: values[2],
        8: values[8][:4] + b"12345678" + values[8][12:],
    }
    entries = dict(store.scan())
    store.write([Put(keys[at], entries[keys[at]], [value]) for at, value in spoilt.items()]).result()
    store.close()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"KVCAIRN_ENCRYPTION_KEY": "secret"}, "line 1 of encryption_key is no key; a key is hex, 64 digits"),
        ({"KVCAIRN_ENCRYPTION_KEY": "00" * 16}, "line 1 of encryption_key has 16 bytes"),
        ({"KVCAIRN_ENCRYPTION_KEY_FILE": "/nowhere/secret"}, "encryption_key_file: cannot read /nowhere"),
        ({"KVCAIRN_ENCRYPTION_KEY": "00", "KVCAIRN_ENCRYPTION_KEY_FILE": "x"}, "are both set; keep one"),
    ],
)
def test_a_key_that_is_none_is_refused_at_the_start_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], message: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message) as caught:
        open_stores(load_settings({"data": tmp_path / "data"}))
    assert "is no key: secret" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SettingsError, match=r"pip install 'kvcairn\[encryption\]'"):
        ring_of_environment(environment(NEW))


def kvcairn(*arguments: object, env: dict[str, str] | None = None) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)], env=env)
