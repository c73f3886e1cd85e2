"""Registering layouts: the fingerprint, the rules, the limits."""

import json

import pytest

from service_samples import canonical, chain, chain_records, fingerprint, layout_document

JSON = {"content-type": "application/json"}


def test_a_layout_is_created_once_and_then_simply_there(caller):
    document = layout_document()
    assert [caller.register(document).status_code for _ in range(2)] == [201, 200]


def test_get_answers_the_canonical_document(caller):
    document = layout_document()
    url = f"/v1/layouts/{fingerprint(document).hex()}"
    spaced = json.dumps(document, indent=3).encode()
    assert caller.http.put(url, content=spaced, headers=JSON).status_code == 201
    assert caller.http.get(url).content == canonical(document)


def test_the_list_names_every_layout(caller):
    document = layout_document()
    caller.register(document)
    listed = {entry["fingerprint"]: entry for entry in caller.http.get("/v1/layouts").json()["layouts"]}
    expected = {"fingerprint": fingerprint(document).hex(), "model": document["model"], "block_tokens": 8, "layers": 2}
    assert listed[fingerprint(document).hex()] == expected


def test_deleting_a_layout_deletes_its_records(caller):
    document = layout_document()
    keys = chain(document, 3)
    caller.register(document)
    caller.store(b"".join(chain_records(document, keys)))
    url = f"/v1/layouts/{fingerprint(document).hex()}"
    assert caller.http.delete(url).status_code == 204
    assert caller.http.get(url).status_code == 404
    assert caller.http.delete(url).status_code == 404
    assert caller.lookup(document, keys).status_code == 409
    caller.register(document)
    assert caller.lookup(document, keys).json()["history_blocks"] == 0


def test_a_wrong_fingerprint_is_refused_with_the_right_one(caller):
    document = layout_document()
    answer = caller.http.put(f"/v1/layouts/{'ab' * 32}", content=canonical(document), headers=JSON)
    assert answer.status_code == 422
    assert fingerprint(document).hex() in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"block_tokens": 12}, "block_tokens"),
        ({"version": 2}, "version"),
        ({"streams": []}, "streams"),
        ({"colour": "red"}, "colour"),
        ({"model": 5}, "model"),
        ({"layers": 1}, "layer"),
    ],
)
def test_a_layout_that_breaks_a_rule_is_refused_by_name(caller, change, named):
    document = {**layout_document(), **change}
    answer = caller.register(document)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert named in answer.json()["detail"]


def test_a_missing_field_is_named(caller):
    document = layout_document()
    del document["identity"]
    assert "identity" in caller.register(document).json()["detail"]


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 100_000, b'{"version": 1} trailing'])
def test_what_is_no_json_is_malformed(caller, body):
    answer = caller.http.put(f"/v1/layouts/{'ab' * 32}", content=body, headers=JSON)
    assert answer.status_code == 400, answer.text


def test_the_largest_record_is_allowed_and_one_byte_more_is_not(caller):
    assert caller.register(layout_document(history_bytes=64 << 20)).status_code == 201
    answer = caller.register(layout_document(history_bytes=(64 << 20) + 1))
    assert answer.status_code == 422
    assert "history" in answer.json()["detail"]
    assert str(64 << 20) in answer.json()["detail"]


def test_a_record_size_too_long_to_print_is_still_a_rule(caller):
    document = layout_document()
    document["streams"][0]["row_shape"] = [2**53 - 1] * 400
    answer = caller.register(document)
    assert answer.status_code == 422


def padded_layout(size_bytes: int) -> dict:
    document = layout_document(model="m")
    document["identity"] = {"pad": ""}
    document["identity"]["pad"] = "x" * (size_bytes - len(canonical(document)))
    return document


def test_a_layout_of_256_kib_is_allowed_and_one_byte_more_is_not(caller):
    assert caller.register(padded_layout(256 << 10)).status_code == 201
    assert caller.register(padded_layout((256 << 10) + 1)).status_code == 413


def test_a_tenant_has_at_most_256_layouts(tenant_caller):
    tenant = tenant_caller("collector")
    documents = [layout_document() for _ in range(257)]
    assert [tenant.register(each).status_code for each in documents[:256]] == [201] * 256
    refused = tenant.register(documents[256])
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert tenant.register(documents[0]).status_code == 200
    tenant.http.delete(f"/v1/layouts/{fingerprint(documents[0]).hex()}")
    assert tenant.register(documents[256]).status_code == 201


def test_zero_and_a_layout_that_cannot_be_replayed_are_refused_on_whichever_comes_second(admin, tenant_caller):
    frozen = layout_document(replay_tokens=None)
    first = tenant_caller("zero-first", strategy={"kind": "zero"})
    assert first.register(frozen).status_code == 422
    assert first.register(layout_document()).status_code == 201
    second = tenant_caller("zero-second")
    assert second.register(frozen).status_code == 201
    zero = {"strategy": {"kind": "zero"}}
    for method in ("PUT", "PATCH"):
        answer = admin.http.request(method, "/v1/tenants/zero-second", json=zero)
        assert answer.status_code == 422
        assert "zero" in answer.json()["detail"]
    assert admin.http.get("/v1/tenants/zero-second").json()["strategy"] == {"kind": "anchored"}
