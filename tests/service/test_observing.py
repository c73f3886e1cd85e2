"""What can be seen from outside: statistics, metrics, logs, request ids, probes and the OpenAPI document."""

import json
import re
import time

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service_caller import Caller
from service_samples import STATE, chain, chain_records, fingerprint, layout_document
from serving import running_service

WRONG = "wrong-very-secret"


def stored(caller, blocks=4):
    document = layout_document()
    caller.register(document)
    keys = chain(document, blocks)
    caller.store(b"".join(chain_records(document, keys) + chain_records(document, keys[:1], kind=STATE)))
    return document, keys


def test_stats_tell_records_bytes_lookups_and_hits_by_kind_and_layout(tenant_caller):
    tenant = tenant_caller("counted", quota_bytes=1 << 30)
    document, keys = stored(tenant)
    tenant.lookup(document, keys + chain(document, 2, seed=5))
    tenant.lookup(document, chain(document, 3, seed=6))
    stats = tenant.http.get("/v1/stats").json()
    layout = fingerprint(document).hex()
    assert (stats["tenant"], stats["records"], stats["quota_bytes"]) == ("counted", 5, 1 << 30)
    assert (stats["raw_bytes"], stats["stored_bytes"]) == (4 * 32 + 24, 4 * 160 + 152)
    assert stats["charged_bytes"] == 5 * 4096
    assert (stats["lookups"], stats["asked_tokens"], stats["hit_tokens"]) == (2, 9 * 8, 4 * 8)
    assert stats["layouts"] == [{"layout": layout, "lookups": 2, "asked_tokens": 72, "hit_tokens": 32}]
    history, state = stats["kinds"]
    assert (history["layout"], history["kind"], history["records"], history["stored_bytes"]) == (
        layout,
        "history",
        4,
        640,
    )
    assert (state["kind"], state["records"], state["stored_bytes"]) == ("state", 1, 152)
    assert 0 <= history["idle_seconds"] <= history["oldest_seconds"] < 60
    tenant.http.delete(tenant.path(document, "history", keys[3]))
    history, state = tenant.http.get("/v1/stats").json()["kinds"]
    assert [(each["records"], each["deleted_records"]) for each in (history, state)] == [(3, 1), (1, 0)]


def test_the_admin_sees_every_tenant_and_the_store(admin, tenant_caller):
    tenant = tenant_caller("seen")
    stored(tenant)
    stats = admin.http.get("/v1/stats/all").json()
    assert stats["capacity_bytes"] == 256 << 20
    assert stats["uptime_seconds"] > 0
    assert stats["charged_bytes"] >= sum(each["charged_bytes"] for each in stats["tenants"]) > 0
    assert {"default", "seen"} <= {each["tenant"] for each in stats["tenants"]}


def test_metrics_name_tenant_layout_and_kind(admin, tenant_caller):
    tenant = tenant_caller("measured")
    document, keys = stored(tenant)
    tenant.lookup(document, keys)
    tenant.fetch(document, ("history", keys[0]))
    layout = fingerprint(document).hex()[:12]
    assert admin.metric("kvcairn_records", tenant="measured", layout=layout, kind="history") == 4
    assert admin.metric("kvcairn_stored_bytes", tenant="measured", kind="state") == 152
    assert admin.metric("kvcairn_lookups_total", tenant="measured") == 1
    assert admin.metric("kvcairn_hit_tokens_total", tenant="measured") == 32
    assert admin.metric("kvcairn_reused_records", tenant="measured", kind="history") == 1
    assert admin.metric("kvcairn_capacity_bytes") == 256 << 20
    assert admin.metric("kvcairn_sent_bytes_total") >= 160
    route = {"method": "POST", "route": "/v1/prefixes:lookup", "status": "200"}
    assert admin.metric("kvcairn_request_duration_seconds_count", **route) >= 1


def test_what_is_deleted_leaves_metrics_and_statistics(admin, tenant_caller):
    tenant = tenant_caller("leaving-metrics")
    layouts = []
    for _ in range(2):
        document, keys = stored(tenant)
        tenant.lookup(document, keys)
        layouts.append(fingerprint(document).hex())
    assert all(f'layout="{layout[:12]}"' in admin.http.get("/metrics").text for layout in layouts)
    tenant.http.delete(f"/v1/layouts/{layouts[0]}")
    text, stats = admin.http.get("/metrics").text, tenant.http.get("/v1/stats").json()
    assert [layout[:12] in text for layout in layouts] == [False, True]
    assert {each["layout"] for each in stats["kinds"] + stats["layouts"]} == {layouts[1]}
    assert admin.http.delete("/v1/tenants/leaving-metrics").status_code == 204
    text = admin.http.get("/metrics").text
    assert "leaving-metrics" not in text
    assert layouts[1][:12] not in text


def test_metrics_are_in_the_text_format_that_prometheus_reads(admin):
    answer = admin.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families) > 15
    assert all(family.name.startswith("kvcairn_") for family in families)


@pytest.mark.parametrize("offered", ["abc-123", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a" * 128])
def test_a_sane_request_id_is_kept(caller, offered):
    for path in ("/v1/stats", "/nowhere", "/healthz", "/metrics"):
        assert caller.http.get(path, headers={"x-request-id": offered}).headers["x-request-id"] == offered


@pytest.mark.parametrize("offered", ["", "a" * 129, "a b", 'a"b', "ä".encode("latin-1")])
def test_another_is_replaced(caller, offered):
    made = {caller.http.get("/v1/stats", headers={"x-request-id": offered}).headers["x-request-id"] for _ in range(2)}
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)
    assert len(made) == 2


def test_each_request_has_one_line_in_the_log_with_its_id_and_tenant(closed_service, admin):
    admin.http.get("/v1/stats", headers={"x-request-id": "the-one"})
    admin.http.get("/no%0Awhere", headers={"x-request-id": "forger"})
    with closed_service.http(token=WRONG) as http:
        http.get("/v1/stats", headers={"x-request-id": "denied"})
    # A line is written after its answer: those of this connection are complete once the last one is there.
    admin.http.get("/v1/stats", headers={"x-request-id": "the-last"})
    for _ in range(500):
        if "the-last" in (log := closed_service.log()):
            break
        time.sleep(0.01)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    ids = [line.get("request_id") for line in lines]
    by_id = dict(zip(ids, lines, strict=True))
    assert [ids.count(each) for each in ("the-one", "forger", "denied")] == [1, 1, 1]
    assert by_id["the-one"]["message"] == "GET /v1/stats 200"
    assert by_id["the-one"]["tenant"] == "default"
    assert by_id["the-one"]["sent_bytes"] > 0
    assert by_id["the-one"]["milliseconds"] > 0
    assert by_id["forger"]["message"] == "GET /no%0Awhere 404"
    assert by_id["denied"]["message"] == "GET /v1/stats 401"
    assert "tenant" not in by_id["denied"]
    assert "very-secret" not in log


WIRE = {
    "/v1/service": {"get"},
    "/v1/layouts": {"get"},
    "/v1/layouts/{fingerprint}": {"get", "put", "delete"},
    "/v1/prefixes:lookup": {"post"},
    "/v1/prefixes:touch": {"post"},
    "/v1/prefixes:pin": {"post"},
    "/v1/pins": {"get"},
    "/v1/pins/{id}": {"get", "delete"},
    "/v1/records:exists": {"post"},
    "/v1/records:fetch": {"post"},
    "/v1/records:store": {"post"},
    "/v1/records:report": {"post"},
    "/v1/records:purge": {"post"},
    "/v1/records/{layout}/{kind}/{key}": {"get", "head", "put", "delete"},
    "/v1/stats": {"get"},
    "/v1/stats/all": {"get"},
    "/v1/tenants": {"get"},
    "/v1/tenants/{name}": {"get", "put", "patch", "delete"},
    "/v1/tenants/{name}/writers": {"get"},
    "/v1/tenants/{name}/records/{layout}/{kind}/{key}": {"get"},
    "/v1/tenants/{name}/tokens": {"get", "post"},
    "/v1/tenants/{name}/tokens/{token_id}": {"delete"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


@pytest.fixture(scope="module")
def openapi(open_service):
    with open_service.http() as http:
        return http.get("/openapi.json").json()


def test_openapi_lists_the_whole_api_and_nothing_else(openapi):
    assert {path: set(operations) for path, operations in openapi["paths"].items()} == WIRE


def test_openapi_describes_every_body_and_every_reference_leads_somewhere(openapi):
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            has_body = method in ("put", "patch") or (method == "post" and not path.endswith("/tokens"))
            assert ("requestBody" in operation) == has_body, (method, path)
            assert operation["summary"]
    for reference in set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(openapi))):
        assert reference in openapi["components"]["schemas"], reference


def test_openapi_says_that_records_are_binary_and_problems_are_problems(openapi):
    store = openapi["paths"]["/v1/records:store"]["post"]
    assert set(store["requestBody"]["content"]) == {"application/vnd.kvcairn.records", "application/octet-stream"}
    assert (
        "application/vnd.kvcairn.records"
        in openapi["paths"]["/v1/records:fetch"]["post"]["responses"]["200"]["content"]
    )
    for operations in openapi["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert set(response["content"]) == {"application/problem+json"}, operation["summary"]


def test_answers_match_the_documents_schemas(openapi, caller):
    document, keys = stored(caller)
    named = caller.naming(document, ("history", keys[0]))
    lookup = {"layout": fingerprint(document).hex(), "block_keys": [keys[0].hex()]}
    report = {"layout": fingerprint(document).hex(), "kind": "history", "key": keys[0].hex()}
    bodies = {
        "/v1/prefixes:lookup": lookup,
        "/v1/prefixes:touch": lookup,
        "/v1/records:exists": named,
        "/v1/records:report": report,
    }
    for path in ("/v1/service", "/v1/layouts", "/v1/stats", "/v1/stats/all", "/v1/tenants", "/healthz", *bodies):
        method = "post" if path in bodies else "get"
        schema = openapi["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        answer = caller.http.request(method, path, json=bodies.get(path)).json()
        jsonschema.validate(answer, {**schema, "components": openapi["components"]})


def test_the_docs_page_is_there(caller):
    assert "openapi.json" in caller.http.get("/docs").text


def test_the_scrub_finds_what_the_disk_lost(tmp_path):
    """A bit of a stored payload is flipped in the data file, beside the service's back."""
    env = {"KVCAIRN_SWEEP_SECONDS": "0.2"}
    with running_service(tmp_path / "data", env=env) as service, service.http() as http:
        caller = Caller(http)
        document = layout_document(history_bytes=100_000)
        caller.register(document)
        keys = chain(document, 3)
        records = chain_records(document, keys)
        caller.store(b"".join(records))
        data = bytearray((tmp_path / "data" / "data.mdb").read_bytes())
        at = data.index(records[1][128:4000]) + 2000
        with (tmp_path / "data" / "data.mdb").open("r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        for _ in range(600):
            if caller.exists(document, ("history", keys[1])) == [False]:
                break
            time.sleep(0.05)
        assert caller.exists(document, *[("history", key) for key in keys]) == [True, False, True]
        assert caller.store(records[1]).json()["stored"] == 1
        assert caller.fetch(document, ("history", keys[1])).content == records[1]
        assert "damaged" in service.log()
