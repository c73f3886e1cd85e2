"""The audit log, and the tokens that settings name: what is noted, by when, and what changes without a restart."""

import asyncio
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from kvcairn_service.app import ROUTERS
from kvcairn_service.audit import AuditLog, Entry
from kvcairn_service.audited import ACTIONS
from kvcairn_service.auth import admin_of
from kvcairn_service.errors import SettingsError
from serving import ServiceProcess, running_service
from sockets import eventually

FIRST = "first-admin-token"


class Guarded:
    """A closed service whose tokens and audit log are files."""

    def __init__(self, directory: Path) -> None:
        self.admin_file, self.metrics_file = directory / "admin", directory / "metrics"
        self.audit_file = directory / "audit.jsonl"
        self.admin_file.write_text(f"{FIRST}\n")
        self.metrics_file.write_text("first-metrics-token\n")
        self.environment = {
            "KVCAIRN_ADMIN_TOKEN_FILE": str(self.admin_file),
            "KVCAIRN_METRICS_TOKEN_FILE": str(self.metrics_file),
            "KVCAIRN_AUDIT_LOG": str(self.audit_file),
        }
        self.service: ServiceProcess

    @property
    def token(self):
        return self.admin_file.read_text().strip()

    def ask(self, method, path, *, token=None, **parameters):
        with self.service.http(token=token or self.token) as http:
            return http.request(method, path, **parameters)

    def lines(self):
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    data = tmp_path_factory.mktemp("service") / "data"
    with running_service(data, "--log-level", "error", env=made.environment) as made.service:
        yield made


class TestAudit:
    """One line for each admin action."""

    def test_each_action_is_one_line_that_is_there_before_its_answer(self, guarded):
        made = []
        for method, path, body, action, tenant, outcome in (
            ("PUT", "/v1/tenants/agents", {"quota_bytes": 5000}, "tenant.put", "agents", "done"),
            ("PATCH", "/v1/tenants/agents", {"codec": "raw"}, "tenant.patch", "agents", "done"),
            ("POST", "/v1/tenants/agents/tokens", None, "token.make", "agents", "done"),
            ("PATCH", "/v1/tenants/agents", {"codec": "gzip"}, "tenant.patch", "agents", "refused"),
            ("DELETE", "/v1/tenants/default", None, "tenant.delete", "default", "refused"),
            ("DELETE", f"/v1/layouts/{'ab' * 32}", None, "layout.delete", None, "refused"),
            ("POST", "/v1/records:purge", {"tenant": "agents", "since": 0}, "records.purge", "agents", "done"),
            ("DELETE", "/v1/tenants/agents", None, "tenant.delete", "agents", "done"),
        ):
            answer = guarded.ask(method, path, json=body, headers={"x-request-id": f"audit-{action}"})
            line = guarded.lines()[-1]
            made.append(answer.json() if action == "token.make" else {})
            assert (line["action"], line["outcome"], line["status"]) == (action, outcome, answer.status_code)
            assert (line["who"], line["from"], line["request_id"]) == ("admin", "127.0.0.1", f"audit-{action}")
            assert line.get("tenant") == tenant
        lines = guarded.lines()[-len(made) :]
        assert lines[0]["settings"]["quota_bytes"] == 5000
        assert lines[1]["settings"] == {"codec": "raw"}
        assert lines[2]["token_id"] == made[2]["id"]
        assert lines[5]["fingerprint"] == "ab" * 32
        assert made[2]["token"] not in guarded.audit_file.read_text()
        assert FIRST not in guarded.audit_file.read_text()

    def test_a_tenant_that_tries_is_noted_by_its_tokens_id_and_a_stranger_as_nobody(self, guarded):
        guarded.ask("PUT", "/v1/tenants/curious", json={})
        made = guarded.ask("POST", "/v1/tenants/curious/tokens").json()
        for token, who in ((made["token"], made["id"]), ("no-token-of-this-service", "nobody")):
            guarded.ask("DELETE", "/v1/tenants/default", token=token)
            line = guarded.lines()[-1]
            assert (line["who"], line["action"], line["outcome"]) == (who, "tenant.delete", "refused")

    def test_reading_and_a_tenants_own_deletions_are_no_admin_actions(self, guarded):
        guarded.ask("PUT", "/v1/tenants/worker", json={})
        token = guarded.ask("POST", "/v1/tenants/worker/tokens").json()["token"]
        before = guarded.lines()
        guarded.ask("GET", "/v1/tenants")
        guarded.ask("DELETE", f"/v1/layouts/{'ab' * 32}", token=token)
        guarded.ask("GET", "/v1/stats", token="wrong")  # noqa: S106 - one that nobody has
        assert guarded.lines() == before

    def test_refusals_without_end_are_counted_and_not_all_written(self, guarded):
        before = len(guarded.lines())
        with guarded.service.http(token="wrong") as http:  # noqa: S106 - one that nobody has
            assert {http.delete("/v1/tenants/default").status_code for _ in range(200)} == {401}
        written = guarded.lines()[before:]
        assert 1 <= len(written) < 150

    def test_the_file_is_private_and_may_be_moved_away_at_any_time(self, guarded):
        assert stat.S_IMODE(guarded.audit_file.stat().st_mode) == 0o600
        rotated = guarded.audit_file.with_suffix(".1")
        guarded.audit_file.rename(rotated)
        kept = rotated.read_text()
        guarded.ask("PUT", "/v1/tenants/rotated", json={})
        assert [line["tenant"] for line in guarded.lines()] == ["rotated"]
        assert rotated.read_text() == kept
        assert stat.S_IMODE(guarded.audit_file.stat().st_mode) == 0o600
        guarded.audit_file.rename(rotated)
        guarded.service.hang_up()
        assert eventually(guarded.audit_file.exists), "made at once, so that nobody has to wonder"

    def test_without_a_file_lines_go_to_the_log(self, closed_service, admin):
        admin.http.put("/v1/tenants/logged", json={})
        lines = [line for line in closed_service.log().splitlines() if '"tenant.put' in line.replace("\\", "")]
        assert any("logged" in line for line in lines)

    def test_a_full_disk_stops_no_action_and_leaves_the_line_in_the_log(self, tmp_path):
        env = {"KVCAIRN_ADMIN_TOKEN": FIRST, "KVCAIRN_AUDIT_LOG": "/dev/full"}
        with running_service(tmp_path / "data", env=env) as service, service.http(token=FIRST) as http:
            assert http.put("/v1/tenants/agents", json={}).status_code == 200
            assert http.get("/v1/tenants/agents").status_code == 200
            assert "/dev/full took no line" in service.log()
            assert '"action": "tenant.put", "tenant": "agents"' in service.log()
            assert "kvcairn_audit_failures_total 1.0" in http.get("/metrics").text

    def test_a_line_behind_one_that_was_cut_off_is_whole(self, tmp_path):
        path = tmp_path / "audit"
        log = AuditLog(path)
        log._write("first")
        log._is_torn = True  # as after a write that the disk took half of
        asyncio.run(log.note(Entry(who="admin", action="tenant.put", outcome="done")))
        log.close()
        first, empty, second = path.read_text().splitlines()
        assert (first, empty, json.loads(second)["action"]) == ("first", "", "tenant.put")

    def test_a_file_that_cannot_be_written_is_refused_at_the_start(self, tmp_path):
        with pytest.raises(SettingsError, match=r"audit_log: cannot write .*nowhere"):
            AuditLog(tmp_path / "nowhere" / "audit")

    def test_every_route_of_the_admin_that_changes_something_is_noted(self):
        routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
        admins = [route for route in routes if admin_of in {each.call for each in route.dependant.dependencies}]
        changing = {(method, route.path) for route in admins for method in route.methods - {"GET", "HEAD"}}
        assert len(changing) >= 6
        assert changing <= ACTIONS.keys()
        assert {(method, route.path) for route in routes for method in route.methods} >= ACTIONS.keys()


class TestStandingTokens:
    """The admin's and the metrics token, from files. Last, since they change the service's."""

    def test_a_new_admin_token_counts_from_the_next_look_on_and_the_old_one_no_more(self, guarded):
        guarded.admin_file.write_text("second-admin-token\n")
        assert eventually(lambda: guarded.ask("GET", "/v1/tenants").status_code == 200)
        assert guarded.ask("GET", "/v1/tenants", token=FIRST).status_code == 401
        assert [(each["who"], each["action"]) for each in guarded.lines()].count(
            ("operator", "reload.admin_token")
        ) == 1

    def test_a_hangup_reads_both_at_once(self, guarded):
        guarded.metrics_file.write_text("second-metrics-token\n")
        guarded.service.hang_up()
        asked = {"token": "second-metrics-token"}
        assert eventually(lambda: guarded.ask("GET", "/metrics", **asked).status_code == 200)
        assert guarded.ask("GET", "/v1/stats", **asked).status_code == 403
        assert guarded.ask("GET", "/metrics", token="first-metrics-token").status_code == 401  # noqa: S106

    @pytest.mark.parametrize("content", ["", "two words\n", "second-metrics-token", None])
    def test_a_file_that_holds_no_token_opens_nothing_and_closes_nothing(self, guarded, content):
        token = guarded.token
        said = guarded.service.log().count("admin_token was not read again")
        if content is None:
            guarded.admin_file.unlink()
        else:
            guarded.admin_file.write_text(content)
        guarded.service.hang_up()
        assert eventually(lambda: guarded.service.log().count("admin_token was not read again") > said)
        with guarded.service.http() as http:
            assert http.get("/v1/tenants").status_code == 401
        assert guarded.ask("GET", "/v1/tenants", token=token).status_code == 200
        guarded.admin_file.write_text(token)


class TestFailedAuthentication:
    """Who has no token can make the service work, but not write."""

    def test_every_failure_is_counted_and_only_some_are_logged(self, closed_service, admin):
        before = admin.metric("kvcairn_request_duration_seconds_count", status="401", route="unknown")
        logged = closed_service.log().count("/v1/flooded 401")
        with closed_service.http(token="kvc_0_wrong") as http:  # noqa: S106 - one that nobody has
            for _ in range(300):
                assert http.get("/v1/flooded").status_code == 401
        after = admin.metric("kvcairn_request_duration_seconds_count", status="401", route="unknown")
        assert after == before + 300
        assert closed_service.log().count("/v1/flooded 401") - logged < 200
