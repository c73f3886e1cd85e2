"""Each limit that the service tells in /v1/service: what just fits passes, and one more is refused as the page says."""

import re
from pathlib import Path

import pytest

from service_caller import Caller
from service_samples import HISTORY, RECORDS, canonical, chain, chain_records, fingerprint, layout_document, record
from serving import ROOT, running_service

SMALL = {
    "layouts_per_tenant": ("KVCAIRN_MAX_LAYOUTS", 2),
    "pins_per_tenant": ("KVCAIRN_MAX_PINS", 2),
    "pin_seconds": ("KVCAIRN_MAX_PIN_SECONDS", 60),
    "layout_bytes": ("KVCAIRN_MAX_LAYOUT_BYTES", 2048),
    "keys_per_request": ("KVCAIRN_MAX_KEYS", 4),
    "record_bytes": ("KVCAIRN_MAX_RECORD_BYTES", 65_536),
    "body_bytes": ("KVCAIRN_MAX_BODY_BYTES", 262_144),
}
"""Every limit, by its name on the wire: the setting, and a value that a test reaches at once."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    env = {variable: str(value) for variable, value in SMALL.values()}
    with running_service(tmp_path_factory.mktemp("small") / "data", env=env) as running:
        yield running


@pytest.fixture
def caller(service):
    with service.http() as http:
        yield Caller(http)
        for each in http.get("/v1/pins").json()["pins"]:
            http.delete(f"/v1/pins/{each['id']}")
        for each in http.get("/v1/layouts").json()["layouts"]:
            http.delete(f"/v1/layouts/{each['fingerprint']}")


def known(caller, blocks=4):
    """A registered layout with a stored prefix."""
    document = layout_document()
    assert caller.register(document).status_code == 201
    keys = chain(document, blocks)
    assert caller.store(b"".join(chain_records(document, keys))).json()["stored"] == blocks
    return document, keys


def pin(caller, document, keys, seconds=60):
    asked = {"layout": fingerprint(document).hex(), "block_keys": [key.hex() for key in keys], "ttl_seconds": seconds}
    return caller.http.post("/v1/prefixes:pin", json=asked)


def test_all_limits_are_told_and_have_a_test_here(caller):
    told = caller.http.get("/v1/service").json()["limits"]
    assert told == {name: value for name, (_, value) in SMALL.items()}
    page = (ROOT / "docs" / "wire.md").read_text().split("### Limits")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == SMALL.keys()
    text = Path(__file__).read_text()
    assert [name for name in SMALL if f"def test_{name}" not in text] == []


def test_layouts_per_tenant(caller):
    assert [caller.register(layout_document()).status_code for _ in range(3)] == [201, 201, 429]


def test_pins_per_tenant(caller):
    document, keys = known(caller)
    assert [pin(caller, document, keys[:length]).status_code for length in (1, 2, 3)] == [201, 201, 429]
    assert pin(caller, document, keys[:2]).status_code == 200, "one that is there may be renewed"


def test_pin_seconds(caller):
    document, keys = known(caller)
    assert [pin(caller, document, keys, seconds).status_code for seconds in (60, 60.5)] == [201, 422]


def test_layout_bytes(caller):
    for size_bytes, status in ((2048, 201), (2049, 413)):
        document = layout_document()
        document["identity"] = {"pad": ""}
        document["identity"]["pad"] = "x" * (size_bytes - len(canonical(document)))
        assert caller.register(document).status_code == status


def test_keys_per_request(caller):
    document, keys = known(caller, 4)
    for count, status in ((4, 200), (5, 413)):
        prefix = {"layout": fingerprint(document).hex(), "block_keys": [keys[0].hex()] * count}
        naming = Caller.naming(document, *[("history", keys[0])] * count)
        for path, body in (
            ("/v1/prefixes:lookup", prefix), ("/v1/prefixes:touch", prefix), ("/v1/prefixes:touch", naming),
            ("/v1/records:exists", naming), ("/v1/records:fetch", naming),
        ):  # fmt: skip
            assert caller.http.post(path, json=body).status_code == status, (path, count)
    more = caller.store(b"".join(chain_records(document, [*keys, keys[0]]))).json()
    assert (more["present"], more["rejected"]) == (4, [{"index": 4, "key": None, "reason": "framing"}])
    assert pin(caller, document, [keys[0]] * 5).status_code == 413


def test_record_bytes(caller):
    assert caller.register(layout_document(history_bytes=65_537)).status_code == 422
    document = layout_document(history_bytes=65_536)
    assert caller.register(document).status_code == 201
    (key,) = chain(document, 1)
    assert caller.store(chain_records(document, [key])[0]).json()["stored"] == 1
    claiming = record(document, HISTORY, key, position=8, payload=b"", raw_bytes=65_537, stored_bytes=10, codec=1)
    assert caller.store(claiming + bytes(10)).json()["rejected"][0]["reason"] == "size"


def test_body_bytes(caller):
    document = layout_document(history_bytes=65_536 - 128)
    caller.register(document)
    whole = b"".join(chain_records(document, chain(document, 4)))
    assert len(whole) == 262_144
    assert caller.store(whole).json()["stored"] == 4
    assert [caller.store(body).status_code for body in (whole + b"x", iter([whole, b"x"]))] == [413, 413]
    path = caller.path(document, "history", chain(document, 1)[0])
    long = caller.http.put(path, content=whole, headers={"content-type": RECORDS})
    assert long.status_code == 413, "a single record's body has a bound of its own"
