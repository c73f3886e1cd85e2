"""A closed service: tokens, tenants and the walls between them."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service_samples import RECORDS, chain, chain_records, fingerprint, layout_document

ADMIN, METRICS = "admin-secret-token", "metrics-secret-token"


def stored_by(caller, blocks=3):
    document = layout_document(model="shared")
    assert caller.register(document).status_code in (200, 201)
    keys = chain(document, blocks)
    assert caller.store(b"".join(chain_records(document, keys))).status_code == 200
    return document, keys


class TestTokens:
    """Who gets in."""

    PATHS = ("/v1/service", "/v1/layouts", "/v1/stats", "/v1/tenants", "/metrics", "/docs", "/openapi.json", "/nowhere")

    def test_every_request_but_the_probes_needs_a_token(self, closed_service):
        with closed_service.http() as http:
            for path in self.PATHS:
                answer = http.get(path)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert answer.headers["content-type"] == "application/problem+json"
            assert [http.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]

    @pytest.mark.parametrize(
        "header", ["Bearer", "Bearer x y", "Basic YTpi", "admin-secret-token", "Bearer nope", "Bearer kvc_x_y"]
    )
    def test_what_is_no_known_token_is_401(self, closed_service, header):
        with closed_service.http() as http:
            assert http.get("/v1/stats", headers={"authorization": header}).status_code == 401

    def test_the_admin_acts_as_the_default_tenant(self, admin):
        assert admin.http.get("/v1/stats").json()["tenant"] == "default"
        assert admin.http.get("/v1/service").json()["open"] is False

    def test_a_tenants_token_is_not_the_admins(self, tenant_caller):
        tenant = tenant_caller("worker")
        for method, path in (
            ("GET", "/v1/tenants"), ("GET", "/v1/tenants/worker"), ("PUT", "/v1/tenants/worker"),
            ("PATCH", "/v1/tenants/worker"), ("DELETE", "/v1/tenants/worker"), ("GET", "/v1/stats/all"),
            ("POST", "/v1/tenants/worker/tokens"), ("GET", "/v1/tenants/worker/tokens"),
            ("DELETE", "/v1/tenants/worker/tokens/x"), ("GET", "/metrics"),
        ):  # fmt: skip
            assert tenant.http.request(method, path).status_code == 403, path
        assert tenant.http.get("/v1/stats").json()["tenant"] == "worker"

    def test_the_metrics_token_reads_metrics_and_nothing_else(self, closed_service):
        with closed_service.http(token=METRICS) as http:
            assert http.get("/metrics").status_code == 200
            assert [http.get(path).status_code for path in ("/v1/stats", "/v1/service", "/v1/tenants")] == [403] * 3

    def test_tokens_rotate_without_a_pause_and_end_when_revoked(self, admin, closed_service, tenant_caller):
        old = tenant_caller("rotating")
        made = admin.http.post("/v1/tenants/rotating/tokens").json()
        new = closed_service.http(token=made["token"])
        with new:
            assert [each.get("/v1/stats").status_code for each in (old.http, new)] == [200, 200]
            listed = admin.http.get("/v1/tenants/rotating/tokens").json()["tokens"]
            assert len(listed) == 2
            assert made["token"] not in str(listed)
            (first,) = (each["id"] for each in listed if each["id"] != made["id"])
            assert admin.http.delete(f"/v1/tenants/rotating/tokens/{first}").status_code == 204
            assert admin.http.delete(f"/v1/tenants/rotating/tokens/{first}").status_code == 404
            assert [each.get("/v1/stats").status_code for each in (old.http, new)] == [401, 200]

    def test_a_token_is_revoked_under_its_own_tenant_alone(self, admin, tenant_caller):
        tenant = tenant_caller("owner")
        tenant_caller("other")
        (token,) = admin.http.get("/v1/tenants/owner/tokens").json()["tokens"]
        assert admin.http.delete(f"/v1/tenants/other/tokens/{token['id']}").status_code == 404
        assert tenant.http.get("/v1/stats").status_code == 200

    def test_tokens_have_256_bits_and_are_neither_logged_nor_kept(self, admin, closed_service, tenant_caller):
        tenant_caller("secretive")
        token = admin.http.post("/v1/tenants/secretive/tokens").json()["token"]
        secret = token.split("_", 2)[2]
        assert re.fullmatch(r"[A-Za-z0-9_-]{43}", secret)
        log = closed_service.log()
        assert secret not in log
        assert "admin-secret-token" not in log


class TestWalls:
    """What one tenant stored is not there for another."""

    def test_neither_layouts_nor_records_are_seen_across(self, tenant_caller):
        one, other = tenant_caller("one"), tenant_caller("two")
        document, keys = stored_by(one)
        url = f"/v1/layouts/{fingerprint(document).hex()}"
        assert other.http.get(url).status_code == 404
        assert other.lookup(document, keys).status_code == 409
        other.register(document)
        assert other.lookup(document, keys).json()["history_blocks"] == 0
        assert other.exists(document, ("history", keys[0])) == [False]
        path = other.path(document, "history", keys[0])
        assert [other.http.request(each, path).status_code for each in ("GET", "HEAD", "DELETE")] == [404] * 3
        assert other.fetch(document, ("history", keys[0])).content[6] == 1
        assert other.http.get("/v1/stats").json()["records"] == 0
        assert one.lookup(document, keys).json()["history_blocks"] == 3

    def test_deleting_at_one_leaves_the_other_alone(self, tenant_caller):
        one, other = tenant_caller("stays"), tenant_caller("goes")
        document, keys = stored_by(one)
        stored_by(other)
        other.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")
        assert one.lookup(document, keys).json()["history_blocks"] == 3

    def test_a_tenant_made_anew_sees_nothing_of_the_old_one(self, admin, tenant_caller):
        old = tenant_caller("phoenix", quota_bytes=1 << 20)
        document, keys = stored_by(old)
        assert admin.http.delete("/v1/tenants/phoenix").status_code == 204
        assert old.http.get("/v1/stats").status_code == 401
        assert admin.http.get("/v1/tenants/phoenix").status_code == 404
        new = tenant_caller("phoenix")
        assert old.http.get("/v1/stats").status_code == 401, "the old token does not come back"
        assert new.http.get("/v1/layouts").json() == {"layouts": []}
        new.register(document)
        assert new.lookup(document, keys).json()["history_blocks"] == 0
        assert admin.http.get("/v1/tenants/phoenix").json()["quota_bytes"] is None

    def test_an_upload_under_way_leaves_nothing_behind_for_a_tenant_that_is_deleted(self, admin, tenant_caller):
        tenant = tenant_caller("leaving")
        document = layout_document(history_bytes=9_000_000)  # one record is enough for a first commit
        tenant.register(document)
        keys = chain(document, 3)
        records = chain_records(document, keys)
        before = admin.http.get("/v1/stats/all").json()["charged_bytes"]
        made_anew = []

        def body():
            yield records[0]
            for _ in range(500):
                if admin.http.get("/v1/stats/all").json()["charged_bytes"] > before:
                    break
            else:
                pytest.fail("the first record was never committed")
            yield records[1][:50_000]
            assert admin.http.delete("/v1/tenants/leaving").status_code == 204
            made_anew.append(tenant_caller("leaving"))
            made_anew[0].register(document)
            yield records[1][50_000:]
            yield records[2]

        assert tenant.store(body()).status_code == 200
        assert made_anew[0].exists(document, *[("history", key) for key in keys]) == [False] * 3
        assert admin.http.get("/v1/stats/all").json()["charged_bytes"] == before

    def test_the_default_tenant_always_exists(self, admin):
        assert admin.http.delete("/v1/tenants/default").status_code == 409
        assert admin.http.get("/v1/tenants/default").status_code == 200


class TestRaces:
    """Changes at the same moment: every one is kept, and no rule is passed by."""

    def test_two_changes_at_once_are_both_kept(self, admin, closed_service):
        admin.http.put("/v1/tenants/contended", json={})
        with closed_service.http(token=ADMIN) as other:
            for each in range(1, 16):
                codec = ("raw", "zstd")[each % 2]
                at_once(
                    lambda codec=codec: admin.http.patch("/v1/tenants/contended", json={"codec": codec}),
                    lambda quota=each: other.patch("/v1/tenants/contended", json={"quota_bytes": quota}),
                )
                kept = admin.http.get("/v1/tenants/contended").json()
                assert (kept["codec"], kept["quota_bytes"]) == (codec, each)

    def test_zero_and_a_layout_that_cannot_be_replayed_never_both_pass(self, admin, tenant_caller):
        for each in range(10):
            tenant, url = tenant_caller(f"racing{each}"), f"/v1/tenants/racing{each}"
            frozen = layout_document(replay_tokens=None)
            answers = at_once(
                lambda url=url: admin.http.patch(url, json={"strategy": {"kind": "zero"}}),
                lambda tenant=tenant, frozen=frozen: tenant.register(frozen),
            )
            assert sorted(answer.status_code for answer in answers) in ([200, 422], [201, 422])


def at_once(*calls):
    """Make the calls in threads of their own, as near to the same moment as threads go; their answers."""
    with ThreadPoolExecutor(len(calls)) as pool:
        start = threading.Barrier(len(calls))

        def call(each):
            start.wait(30)
            return each()

        return list(pool.map(call, calls))


class TestSettings:
    """What may be set."""

    def test_a_document_can_be_put_back_as_it_was_got(self, admin):
        url = "/v1/tenants/returned"
        admin.http.put(url, json={"quota_bytes": 1000, "codec": "raw"})
        document = admin.http.get(url).json()
        assert admin.http.put(url, json={**document, "quota_bytes": 2000}).json() == {**document, "quota_bytes": 2000}
        assert admin.http.patch(url, json={"name": "returned", "codec": "zstd"}).json()["codec"] == "zstd"

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    def test_a_document_of_another_name_is_refused(self, admin, method):
        admin.http.put("/v1/tenants/itself", json={"quota_bytes": 1000})
        answer = admin.http.request(method, "/v1/tenants/itself", json={"name": "other", "quota_bytes": 5})
        assert answer.status_code == 422
        assert "other" in answer.json()["detail"]
        assert admin.http.get("/v1/tenants/itself").json()["quota_bytes"] == 1000

    def test_put_takes_defaults_for_what_is_left_out_and_patch_keeps_it(self, admin):
        url = "/v1/tenants/tuned"
        made = admin.http.put(
            url, json={"strategy": {"kind": "periodic", "every_tokens": 4096}, "quota_bytes": 10 << 20}
        )
        assert made.status_code == 200
        assert made.json() == {
            "name": "tuned", "strategy": {"kind": "periodic", "every_tokens": 4096}, "codec": "auto",
            "quota_bytes": 10 << 20, "ttl_seconds": None, "pin_quota_bytes": None, "encrypt": False,
        }  # fmt: skip
        patched = admin.http.patch(url, json={"codec": "raw", "ttl_seconds": 60, "strategy": {"kind": "full"}}).json()
        assert (patched["strategy"], patched["codec"], patched["quota_bytes"]) == ({"kind": "full"}, "raw", 10 << 20)
        assert admin.http.patch(url, json={"quota_bytes": None}).json()["quota_bytes"] is None
        assert admin.http.put(url, json={}).json()["strategy"] == {"kind": "anchored"}
        assert admin.http.patch("/v1/tenants/nobody", json={}).status_code == 404

    def test_a_lookup_tells_strategy_and_codec(self, admin, tenant_caller):
        tenant = tenant_caller("told", strategy={"kind": "full"}, codec="zstd")
        document, keys = stored_by(tenant)
        answer = tenant.lookup(document, keys).json()
        assert (answer["strategy"], answer["codec"]) == ({"kind": "full"}, "zstd")
        admin.http.patch("/v1/tenants/told", json={"strategy": {"kind": "zero"}})
        assert tenant.lookup(document, keys).json()["strategy"] == {"kind": "zero"}
        assert tenant.lookup(document, keys).json()["history_blocks"] == 3, "what was stored stays usable"

    def test_a_quota_evicts_the_tenants_own_oldest(self, tenant_caller):
        tenant = tenant_caller("small", quota_bytes=8 * 4096)
        document = layout_document()
        tenant.register(document)
        chains = [chain(document, 1, seed=seed) for seed in range(20)]
        for keys in chains:
            assert tenant.store(chain_records(document, keys)[0]).json()["stored"] == 1
        present = tenant.exists(document, *[("history", keys[0]) for keys in chains])
        assert present == [False] * 12 + [True] * 8
        stats = tenant.http.get("/v1/stats").json()
        assert stats["charged_bytes"] <= stats["quota_bytes"] == 8 * 4096
        assert stats["kinds"][0]["evicted_records"] == 12

    def test_what_is_larger_than_the_quota_is_413_and_a_chain_that_fills_it_507(self, tenant_caller):
        tiny = tenant_caller("tiny", quota_bytes=4095)
        document = layout_document()
        tiny.register(document)
        keys = chain(document, 3)
        records = chain_records(document, keys)
        refused = tiny.store(records[0])
        assert refused.status_code == 413
        assert refused.json()["rejected"] == [{"index": 0, "key": keys[0].hex(), "reason": "quota"}]
        assert "retry-after" not in refused.headers
        tight = tenant_caller("tight", quota_bytes=2 * 4096)
        tight.register(document)
        assert tight.store(records[0] + records[1]).json()["stored"] == 2
        full = tight.store(records[2])
        assert full.status_code == 507
        assert int(full.headers["retry-after"]) > 0
        some = tight.store(records[0] + records[2])
        assert some.status_code == 200
        assert some.json()["present"] == 1
        assert some.json()["rejected"][0]["reason"] == "quota"
        path = tight.path(document, "history", keys[2])
        assert tight.http.put(path, content=records[2], headers={"content-type": RECORDS}).status_code == 507

    def test_an_idle_record_is_gone_at_the_first_look_after_its_time(self, tenant_caller):
        tenant = tenant_caller("hasty", ttl_seconds=0.001)
        document, keys = stored_by(tenant)
        assert tenant.lookup(document, keys).json()["history_blocks"] == 0
        assert tenant.http.get("/v1/stats").json()["kinds"][0]["expired_records"] == 3
