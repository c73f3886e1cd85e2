"""A store that lies: with a MAC key, nothing that it made up is ever loaded; without one, it is."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import client_samples as samples
import service_samples
from kvcairn_client.client import Client
from kvcairn_client.mac_keys import MacKeys, mac_keys
from kvcairn_client.records import Outgoing
from kvcairn_protocol.layout import Kind, Layout
from service_caller import Caller
from serving import ServiceProcess, running_service

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
PLAIN = samples.layout("org/mac@1")
SIGNED = MacKeys([KEY]).authenticated(PLAIN)
OLDER = MacKeys([KEY]).authenticated(samples.layout("org/mac@0"))
BLOCKS, STATES = 6, [2, 4]
MAC_BYTES = 32


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mac") / "data"


@pytest.fixture(scope="module")
def process(data: Path) -> Iterator[ServiceProcess]:
    with running_service(data, "--uds", f"{data}.socket") as running:
        yield running


@pytest.fixture
def liar(process: ServiceProcess) -> Iterator["Liar"]:
    with process.http() as http:
        yield Liar(Caller(http))


class Liar:
    """Whoever has the store's bytes in hand: reads records, and puts others in their place with good checksums."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def read(self, layout: Layout, record: Outgoing) -> bytes:
        """The stored payload."""
        answer = self.caller.http.get(self.caller.path(json.loads(layout.canonical), record.kind.label, record.key))
        assert answer.status_code == 200
        return answer.content[128:]

    def replace(self, layout: Layout, record: Outgoing, payload: bytes, *, parent: bytes | None = None) -> None:
        document = json.loads(layout.canonical)
        path = self.caller.path(document, record.kind.label, record.key)
        assert self.caller.http.delete(path).status_code == 204
        forged = service_samples.record(
            document, record.kind, record.key, position=record.position, payload=payload,
            parent=record.parent if parent is None else parent,
        )  # fmt: skip
        put = self.caller.http.put(path, content=forged, headers={"content-type": service_samples.RECORDS})
        assert put.status_code == 201, put.text


def flip(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    payload = bytearray(liar.read(layout, records[1]))
    payload[7] ^= 1
    liar.replace(layout, records[1], bytes(payload))
    return {1}


def flip_a_state(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    payload = bytearray(liar.read(layout, records[BLOCKS]))
    payload[0] ^= 0x80
    liar.replace(layout, records[BLOCKS], bytes(payload))
    return {BLOCKS}


def swap_two_blocks(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    first, second = (liar.read(layout, records[index]) for index in (0, 2))
    liar.replace(layout, records[0], second)
    liar.replace(layout, records[2], first)
    return {0, 2}


def move_a_state(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    liar.replace(layout, records[BLOCKS + 1], liar.read(layout, records[BLOCKS]))
    return {BLOCKS + 1}


def replay_an_older_model(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    older = OLDER if layout is SIGNED else samples.layout("org/mac@0")
    writer = Client(str(liar.caller.http.base_url), mac_key=[KEY] if layout is SIGNED else [])
    with writer:
        old = [each._replace(payload=bytes(each.payload)[::-1]) for each in records_of(older)]
        writer.store(older, old, codec="raw")
    liar.replace(layout, records[3], liar.read(older, old[3]))
    return {3}


def sign_with_nothing(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    liar.replace(layout, records[4], bytes(len(liar.read(layout, records[4]))))
    return {4}


def move_under_another_parent(liar: Liar, layout: Layout, records: list[Outgoing]) -> set[int]:
    last = BLOCKS - 1
    liar.replace(layout, records[last], liar.read(layout, records[last]), parent=b"another parent!!")
    return {last}


ATTACKS = [flip, flip_a_state, swap_two_blocks, move_a_state, replay_an_older_model, sign_with_nothing]
Attack = Callable[[Liar, Layout, list[Outgoing]], set[int]]


def records_of(layout: Layout) -> list[Outgoing]:
    return samples.prompt(layout, BLOCKS, states=STATES)


def fetched(client: Client, layout: Layout) -> tuple[list[bool], list[bytes], int]:
    wishes, buffers = samples.wanted(layout, records_of(layout))
    result = client.fetch(layout, wishes)
    return result.loaded, [bytes(buffer) for buffer in buffers], result.forged_records


def right(layout: Layout) -> list[bytes]:
    tail = MAC_BYTES if layout is SIGNED else 0
    return [bytes(each.payload)[: len(each.payload) - tail] for each in records_of(layout)]


@pytest.mark.parametrize("way", ["tcp", "unix", "attach"])
@pytest.mark.parametrize("attack", [*ATTACKS, move_under_another_parent], ids=lambda attack: attack.__name__)
def test_what_a_lying_store_made_up_is_never_loaded_and_can_be_replaced(
    process: ServiceProcess, data: Path, liar: Liar, attack: Attack, way: str
) -> None:
    ways = {"tcp": process.url, "unix": process.uds_url, "attach": process.uds_url}
    with Client(ways[way], attach=data if way == "attach" else None, mac_key=KEY) as client:
        client.store(SIGNED, records_of(SIGNED), codec="raw")
        assert fetched(client, SIGNED)[0] == [True] * 8
        changed = attack(liar, SIGNED, records_of(SIGNED))
        loaded, payloads, forged = fetched(client, SIGNED)
        assert {index for index, is_loaded in enumerate(loaded) if not is_loaded} == changed
        assert forged == len(changed)
        for index, (payload, true) in enumerate(zip(payloads, right(SIGNED), strict=True)):
            assert index in changed or payload[:-MAC_BYTES] == true
        assert client.store(SIGNED, records_of(SIGNED)).stored == len(changed), (
            "what was made up stands in nobody's way"
        )
        assert fetched(client, SIGNED)[0] == [True] * 8


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_without_a_key_the_same_attack_succeeds(process: ServiceProcess, liar: Liar, attack: Attack) -> None:
    layout = samples.layout(f"org/plain@{attack.__name__}")
    with Client(process.url) as client:
        client.store(layout, records_of(layout), codec="raw")
        changed = attack(liar, layout, records_of(layout))
        loaded, payloads, forged = fetched(client, layout)
    assert loaded == [True] * 8
    assert forged == 0
    wrong = {index for index, (got, true) in enumerate(zip(payloads, right(layout), strict=True)) if got != true}
    assert wrong == changed


@pytest.mark.parametrize("codec", ["zstd", "shuffle-zstd", "auto"])
def test_a_compressed_record_is_judged_by_what_it_decodes_to(process: ServiceProcess, liar: Liar, codec: str) -> None:
    layout = MacKeys([KEY]).authenticated(samples.layout(f"org/{codec}@1"))
    records = records_of(layout)
    with Client(process.url, mac_key=KEY) as client:
        client.store(layout, records, codec=codec)  # type: ignore[arg-type]
        loaded, payloads, _ = fetched(client, layout)
        assert loaded == [True] * 8
        assert [payload[:-MAC_BYTES] for payload in payloads] == [bytes(each.payload)[:-MAC_BYTES] for each in records]
        liar.replace(layout, records[1], payloads[1])
        assert fetched(client, layout)[0] == [True] * 8, "the same bytes, stored raw"
        liar.replace(layout, records[1], payloads[3])
        assert fetched(client, layout)[0] == [True, False, *[True] * 6]


def test_a_store_that_lies_is_logged_once(
    process: ServiceProcess, liar: Liar, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(process.url, mac_key=KEY) as client, caplog.at_level(logging.WARNING):
        for _ in range(3):
            client.store(SIGNED, records_of(SIGNED), codec="raw")
            flip(liar, SIGNED, records_of(SIGNED))
            assert fetched(client, SIGNED)[2] == 1
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert f"1 records of {process.url} have a wrong MAC, such as history {samples.key(1).hex()}" in lines[0]


def test_a_client_with_a_key_takes_nothing_that_is_not_signed_with_one_of_its_own(process: ServiceProcess) -> None:
    with Client(process.url, mac_key=KEY) as client:
        for call in (lambda: client.store(PLAIN, records_of(PLAIN)), lambda: fetched(client, PLAIN)):
            with pytest.raises(ValueError, match="the layout has no MAC: use mac_keys"):
                call()
        windows = [samples.outgoing(SIGNED, Kind.WINDOW, 1)]
        with pytest.raises(ValueError, match="window records carry no MAC"):
            client.store(SIGNED, windows)
        with pytest.raises(ValueError, match="window records carry no MAC"):
            client.fetch(SIGNED, samples.wanted(SIGNED, windows)[0])
    for keys in ([], OTHER):
        refused = pytest.raises(ValueError, match="authenticated by hmac-sha256:acfbf5690be48d66; this client has")
        with Client(process.url, mac_key=keys) as stranger, refused:
            fetched(stranger, SIGNED)


def test_the_first_key_signs_and_every_key_reads(process: ServiceProcess) -> None:
    with Client(process.url, mac_key=KEY) as before:
        before.store(SIGNED, records_of(SIGNED))
    with Client(process.url, mac_key=[OTHER, KEY]) as client:
        fresh = client.mac_keys.authenticated(PLAIN)
        assert fresh == MacKeys([OTHER]).authenticated(PLAIN)
        assert fetched(client, SIGNED)[0] == [True] * 8
        assert client.lookup(fresh, samples.keys(BLOCKS)).history_blocks == 0
        client.store(fresh, records_of(fresh))
        assert fetched(client, fresh)[0] == [True] * 8


def test_what_was_given_to_store_is_not_changed(process: ServiceProcess) -> None:
    record = samples.outgoing(SIGNED, Kind.HISTORY, 0)
    mine = bytearray(record.payload)
    with Client(process.url, mac_key=KEY) as client:
        client.store(SIGNED, [record._replace(payload=mine)])
    assert bytes(mine) == record.payload


def test_keys_come_from_a_file_or_from_the_file_that_the_environment_names(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# new\n{OTHER.hex()}\n\n  {KEY.hex().upper()}  \n# old\n")
    named = {"KVCAIRN_MAC_KEY_FILE": str(path)}
    assert mac_keys(None, path, {}).keys == mac_keys(None, None, named).keys == (OTHER, KEY)
    assert mac_keys(KEY, None, named).keys == (KEY,), "what is given comes first"
    assert mac_keys([], None, named).keys == ()
    assert mac_keys(None, None, {}).keys == mac_keys(None, None, {"KVCAIRN_MAC_KEY_FILE": ""}).keys == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key; a key is a line of hex, 32 digits or more"),
        (b"# only this\n", "holds no key"),
        (b"00112233445566778899aabbccddeeff\nsecret\n", "line 2 of .* is no key"),
        (b"0011", "line 1 of .* has 2 bytes"),
        (b"\xff\xfe\x00", "is no text"),
    ],
)
def test_a_file_without_good_keys_is_refused_and_its_content_is_not_repeated(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Client(mac_key_file=path)
    assert "secret" not in str(caught.value)


def test_other_mistakes_with_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mac_key and mac_key_file are both set; keep one"):
        Client(mac_key=KEY, mac_key_file=tmp_path)
    with pytest.raises(ValueError, match=r"mac_key_file: cannot read .*No such file"):
        Client(mac_key_file=tmp_path / "none")
    with pytest.raises(ValueError, match="16 random bytes or more; key 1 has 3"):
        Client(mac_key=[KEY, b"abc"])


def test_keys_are_never_shown() -> None:
    assert repr(MacKeys([KEY])) == "MacKeys(hmac-sha256:acfbf5690be48d66)"
