"""Pins over HTTP: what a pinned prefix outlives, who may pin how much, and what is said of a pin."""

import time

import pytest

from service_caller import Caller
from service_samples import STATE, chain, chain_records, fingerprint, layout_document
from serving import running_service

PAGE = 4096


def stored(caller, blocks, *, states=(), seed=0, document=None):
    document = document or layout_document()
    assert caller.register(document).status_code in {200, 201}
    keys = chain(document, blocks, seed=seed)
    every = chain_records(document, keys, kind=STATE)
    records = chain_records(document, keys) + [every[index] for index in states]
    assert caller.store(b"".join(records)).json()["stored"] == len(records)
    return document, keys


def flood(caller, document, *, pages, at_once=10):
    """Store so many other records, history of prompts of one block; some at a time, since a body keeps its own."""
    others = [chain_records(document, chain(document, 1, seed=10_000 + index))[0] for index in range(pages)]
    for start in range(0, pages, at_once):
        assert caller.store(b"".join(others[start : start + at_once])).status_code == 200


def listed(caller):
    return caller.http.get("/v1/pins").json()


def test_a_pinned_prefix_outlives_a_quota_and_restores_as_before(tenant_caller):
    tenant = tenant_caller("pinning", quota_bytes=40 * PAGE, pin_quota_bytes=10 * PAGE)
    document, keys = stored(tenant, 8, states=(2, 5, 7))
    answer = tenant.pin(document, keys, name="system-prompt")
    assert answer.status_code == 201
    made = answer.json()
    assert (made["name"], made["layout"]) == ("system-prompt", fingerprint(document).hex())
    assert (made["history_blocks"], made["pinned_tokens"], made["state_tokens"]) == (8, 64, [64, 48])
    assert (made["records"], made["present_records"], made["charged_bytes"]) == (10, 10, 10 * PAGE)
    assert made["expires"] - made["created"] == pytest.approx(3600)
    assert abs(made["created"] - time.time()) < 60
    flood(tenant, document, pages=60)
    found = tenant.lookup(document, keys).json()
    assert (found["history_blocks"], found["state_tokens"][:2]) == (8, [64, 48])
    stats = tenant.http.get("/v1/stats").json()
    assert stats["charged_bytes"] == 40 * PAGE
    assert (stats["pinned_records"], stats["pinned_bytes"], stats["pin_quota_bytes"]) == (10, 10 * PAGE, 10 * PAGE)
    assert {each["kind"]: each["pinned_records"] for each in stats["kinds"]} == {"history": 8, "state": 2}


def test_a_pin_is_listed_shown_renewed_and_removed(tenant_caller):
    tenant = tenant_caller("keeper", quota_bytes=60 * PAGE, pin_quota_bytes=20 * PAGE)
    document, keys = stored(tenant, 6)
    named = tenant.pin(document, keys[:4], name="prompt").json()
    nameless = tenant.pin(document, keys).json()
    assert listed(tenant) == {"pins": [named, nameless], "pinned_bytes": 6 * PAGE, "pin_quota_bytes": 20 * PAGE}
    assert tenant.http.get(f"/v1/pins/{named['id']}").json() == named
    again = tenant.pin(document, keys, ttl_seconds=7200)
    assert again.status_code == 200
    assert again.json()["id"] == nameless["id"]
    assert again.json()["expires"] > nameless["expires"] + 3000
    moved = tenant.pin(document, keys[:2], name="prompt")
    assert (moved.status_code, moved.json()["id"], moved.json()["history_blocks"]) == (200, named["id"], 2)
    assert tenant.http.delete(f"/v1/pins/{nameless['id']}").status_code == 204
    assert tenant.http.delete(f"/v1/pins/{nameless['id']}").status_code == 404
    assert [each["id"] for each in listed(tenant)["pins"]] == [named["id"]]
    flood(tenant, document, pages=80)
    assert tenant.lookup(document, keys).json()["history_blocks"] == 2


def test_pinning_the_longer_prefix_takes_in_what_was_stored_since(tenant_caller):
    tenant = tenant_caller("growing", quota_bytes=100 * PAGE)
    document, _ = stored(tenant, 3)
    longer = chain(document, 5)
    assert tenant.pin(document, longer).json()["history_blocks"] == 3
    tenant.store(b"".join(chain_records(document, longer)[3:]))
    renewed = tenant.pin(document, longer)
    assert (renewed.status_code, renewed.json()["history_blocks"]) == (200, 5)
    assert len(listed(tenant)["pins"]) == 1


def test_what_is_not_stored_cannot_be_pinned_and_a_longer_wish_is_told_what_was(tenant_caller):
    tenant = tenant_caller("wishful")
    document, _ = stored(tenant, 2)
    nothing = tenant.pin(document, chain(document, 4, seed=9))
    assert nothing.status_code == 404
    assert "nothing of this prefix is stored" in nothing.json()["detail"]
    assert listed(tenant)["pins"] == []
    assert tenant.pin(document, chain(document, 30)).json()["history_blocks"] == 2


def test_a_tenant_sees_renews_and_removes_its_own_pins_alone(tenant_caller):
    red, blue = tenant_caller("pin-red"), tenant_caller("pin-blue")
    document, keys = stored(red, 3)
    made = red.pin(document, keys, name="prompt").json()
    assert listed(blue)["pins"] == []
    assert listed(blue)["pinned_bytes"] == 0
    answers = [blue.http.get(f"/v1/pins/{made['id']}"), blue.http.delete(f"/v1/pins/{made['id']}")]
    unknown = blue.http.get(f"/v1/pins/{'0' * 32}")
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json()["detail"].replace(made["id"], "0" * 32) == unknown.json()["detail"]
    assert blue.pin(document, keys).status_code == 409, "not even its layout is known there"
    blue.register(document)
    assert blue.pin(document, keys, name="prompt").status_code == 404
    assert listed(red)["pins"] == [made]


def test_a_pin_beyond_the_quota_is_refused_whole_and_says_what_would_fit(tenant_caller):
    tenant = tenant_caller("modest", quota_bytes=100 * PAGE, pin_quota_bytes=8 * PAGE)
    document, keys = stored(tenant, 9)
    never = tenant.pin(document, keys)
    assert never.status_code == 413
    assert f"{9 * PAGE} bytes" in never.json()["detail"]
    assert f"{8 * PAGE}" in never.json()["detail"]
    assert "retry-after" not in never.headers
    assert tenant.pin(document, keys[:5]).status_code == 201
    _, others = stored(tenant, 4, seed=1, document=document)
    not_now = tenant.pin(document, others)
    assert not_now.status_code == 507
    assert int(not_now.headers["retry-after"]) > 0
    assert listed(tenant)["pinned_bytes"] == 5 * PAGE
    assert tenant.pin(document, keys[:8]).status_code == 201, "five of the eight take no more room than they have"
    assert listed(tenant)["pinned_bytes"] == 8 * PAGE


def test_pins_take_a_tenth_unless_told_and_never_more_than_half_and_nothing_where_they_are_off(tenant_caller, admin):
    tenant = tenant_caller("tenth", quota_bytes=30 * PAGE)
    document, keys = stored(tenant, 20)
    assert listed(tenant)["pin_quota_bytes"] == 3 * PAGE
    assert tenant.pin(document, keys[:4]).status_code == 413
    admin.http.patch("/v1/tenants/tenth", json={"pin_quota_bytes": 29 * PAGE})
    assert listed(tenant)["pin_quota_bytes"] == 15 * PAGE
    assert tenant.pin(document, keys[:16]).status_code == 413
    assert tenant.pin(document, keys[:15]).status_code == 201
    admin.http.patch("/v1/tenants/tenth", json={"pin_quota_bytes": 0})
    off = tenant.pin(document, keys[:1])
    assert off.status_code == 413
    assert "pin_quota_bytes is 0" in off.json()["detail"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"ttl_seconds": 0}, "ttl_seconds"), ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"ttl_seconds": None}, "ttl_seconds"),
        ({"ttl_seconds": 2_592_001}, "2592000"), ({"name": "Not A Name"}, "name"), ({"name": ""}, "name"),
        ({"block_keys": []}, "block_keys"), ({"block_keys": ["xy"]}, "block_keys"), ({"id": "0" * 32}, "id"),
    ],
)  # fmt: skip
def test_a_wish_that_breaks_a_rule_is_told_which(caller, more, named):
    document, keys = stored(caller, 1)
    refused = caller.pin(document, keys, **more)
    assert refused.status_code == 422
    assert named in refused.json()["detail"]


def test_an_expiry_is_needed_and_an_unchained_layout_has_no_prefix(caller):
    document, keys = stored(caller, 1)
    body = {"layout": fingerprint(document).hex(), "block_keys": [keys[0].hex()]}
    refused = caller.http.post("/v1/prefixes:pin", json=body)
    assert refused.status_code == 422
    assert "ttl_seconds" in refused.json()["detail"]
    unchained = layout_document(chained=False)
    caller.register(unchained)
    assert caller.pin(unchained, keys).status_code == 422
    assert caller.http.get("/v1/pins/not-an-id").status_code == 422
    assert caller.pin(document, keys * 16_385).status_code == 413


def test_a_pin_whose_records_are_gone_says_so_and_keeps_what_is_stored_anew(tenant_caller):
    tenant = tenant_caller("honest", quota_bytes=60 * PAGE, pin_quota_bytes=10 * PAGE)
    document, keys = stored(tenant, 4)
    made = tenant.pin(document, keys).json()
    assert tenant.http.delete(tenant.path(document, "history", keys[1])).status_code == 204
    shown = tenant.http.get(f"/v1/pins/{made['id']}").json()
    assert (shown["records"], shown["present_records"]) == (4, 3)
    assert tenant.lookup(document, keys).json()["history_blocks"] == 1
    tenant.store(chain_records(document, keys)[1])
    assert tenant.http.get(f"/v1/pins/{made['id']}").json()["present_records"] == 4
    flood(tenant, document, pages=80)
    assert tenant.lookup(document, keys).json()["history_blocks"] == 4


def test_deleting_a_layout_or_a_tenant_ends_its_pins(tenant_caller, admin):
    tenant = tenant_caller("ending", quota_bytes=60 * PAGE, pin_quota_bytes=10 * PAGE)
    document, keys = stored(tenant, 3)
    other, other_keys = stored(tenant, 2)
    tenant.pin(document, keys)
    kept = tenant.pin(other, other_keys).json()
    assert tenant.http.delete(f"/v1/layouts/{fingerprint(document).hex()}").status_code == 204
    assert listed(tenant)["pins"] == [kept]
    assert listed(tenant)["pinned_bytes"] == 2 * PAGE
    assert admin.http.delete("/v1/tenants/ending").status_code == 204
    anew = tenant_caller("ending")
    assert listed(anew)["pins"] == []
    assert listed(anew)["pinned_bytes"] == 0


def test_a_pinned_prefix_is_not_idle_and_the_end_of_a_pin_counts_as_a_use(tenant_caller, admin):
    tenant = tenant_caller("lasting", pin_quota_bytes=10 * PAGE)
    document, keys = stored(tenant, 3)
    made = tenant.pin(document, keys[:2]).json()
    admin.http.patch("/v1/tenants/lasting", json={"ttl_seconds": 0.001})
    assert tenant.lookup(document, keys).json()["history_blocks"] == 2
    admin.http.patch("/v1/tenants/lasting", json={"ttl_seconds": 3600})
    tenant.http.delete(f"/v1/pins/{made['id']}")
    assert tenant.lookup(document, keys).json()["history_blocks"] == 2
    admin.http.patch("/v1/tenants/lasting", json={"ttl_seconds": 0.001})
    assert tenant.lookup(document, keys).json()["history_blocks"] == 0


def test_metrics_tell_what_is_pinned(tenant_caller, admin):
    tenant = tenant_caller("pin-measured", pin_quota_bytes=10 * PAGE)
    document, keys = stored(tenant, 3, states=(2,))
    tenant.pin(document, keys)
    labels = {"tenant": "pin-measured", "layout": fingerprint(document).hex()[:12]}
    assert admin.metric("kvcairn_pinned_records", kind="history", **labels) == 3
    assert admin.metric("kvcairn_pinned_bytes", kind="state", **labels) == PAGE
    assert "pins" in tenant.http.get("/v1/service").json()["features"]


def test_pins_survive_a_kill_and_those_that_expired_or_no_longer_fit_are_let_go(tmp_path):
    """The second start has a capacity of 100 pages, so 25 for pins: the oldest one fits, the newest does not."""
    data = tmp_path / "data"
    with running_service(data, "--capacity", str(1024 * PAGE)) as first, first.http() as http:
        caller = Caller(http)
        document, keys = stored(caller, 20)
        _, short_keys = stored(caller, 4, seed=5, document=document)
        _, late_keys = stored(caller, 10, seed=6, document=document)
        kept = caller.pin(document, keys, name="kept").json()
        assert caller.pin(document, short_keys, name="short", ttl_seconds=0.1).status_code == 201
        assert caller.pin(document, late_keys, name="late").status_code == 201
        first.kill()
    with running_service(data, "--capacity", str(100 * PAGE)) as second, second.http() as http:
        caller = Caller(http)
        assert listed(caller) == {"pins": [kept], "pinned_bytes": 20 * PAGE, "pin_quota_bytes": 10 * PAGE}
        assert second.log().count("no longer fits") == 1
        flood(caller, document, pages=120, at_once=40)
        assert caller.lookup(document, keys).json()["history_blocks"] == 20
        assert caller.lookup(document, short_keys).json()["history_blocks"] == 0
        assert caller.lookup(document, late_keys).json()["history_blocks"] == 0
        assert caller.http.get("/v1/stats/all").json()["charged_bytes"] <= 100 * PAGE
