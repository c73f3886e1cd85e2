"""An open service, and the pages that a browser beside it shows: none of them gets anything out of it."""

import re

import pytest

from service_caller import operations_of
from service_samples import fingerprint, layout_document


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "nonsense"])
def test_another_sites_page_is_refused_even_where_no_origin_is_sent(open_service, site):
    """As an image, a form or a navigation of another site would ask."""
    with open_service.http() as asking:
        for path in ("/v1/stats", "/docs", "/metrics", "/healthz"):
            answer = asking.get(path, headers={"sec-fetch-site": site})
            assert answer.status_code == 403
            assert "Sec-Fetch-Site" in answer.json()["detail"]


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_a_person_who_types_the_address_is_answered(open_service, site):
    with open_service.http() as asking:
        for path in ("/docs", "/openapi.json", "/v1/stats"):
            assert asking.get(path, headers={"sec-fetch-site": site}).status_code == 200


def test_a_name_that_was_bound_to_loopback_reaches_nothing(open_service, caller):
    """DNS rebinding: to the browser it is the page's own site, and only Host tells."""
    port = open_service.url.rsplit(":", 1)[1]
    page = {
        "host": f"rebound.example:{port}",
        "origin": f"http://rebound.example:{port}",
        "sec-fetch-site": "same-origin",
    }
    document = layout_document()
    for method, path, body in (
        ("GET", "/v1/stats/all", None),
        ("PUT", "/v1/tenants/planted", {}),
        ("PUT", f"/v1/layouts/{fingerprint(document).hex()}", document),
        ("DELETE", "/v1/tenants/default", None),
    ):
        assert caller.http.request(method, path, json=body, headers=page).status_code == 403, path
    assert caller.http.get("/v1/tenants/planted").status_code == 404
    assert caller.http.get(f"/v1/layouts/{fingerprint(document).hex()}").status_code == 404


def test_no_answer_gives_a_page_leave_to_read_it(open_service, caller):
    """Preflights, TRACE and every method on every path: never a CORS header, and TRACE echoes nothing."""
    operations, _ = operations_of(open_service)
    page = {"origin": "http://localhost:3000", "access-control-request-method": "PUT", "cookie": "secret=1"}
    for path in sorted({path for _, path in operations} | {"/docs", "/nowhere"}):
        for method in ("OPTIONS", "TRACE", "GET", "POST"):
            answer = caller.http.request(method, path.replace("{", "").replace("}", ""), headers=page)
            assert not [name for name in answer.headers if name.startswith("access-control-")], (method, path)
            if method in ("OPTIONS", "TRACE"):
                assert answer.status_code in (404, 405), (method, path)
                assert "secret" not in answer.text


def test_whatever_a_browser_shows_runs_and_fetches_nothing(caller):
    for path in ("/docs", "/v1/stats", "/nowhere", "/metrics", "/openapi.json"):
        answer = caller.http.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors 'none'")
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_the_docs_page_has_no_script_and_nothing_from_elsewhere_and_lists_every_path(open_service, caller):
    page = caller.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"<script|https?://|//cdn|\bon\w+=|src=", page.text, flags=re.IGNORECASE)
    assert re.findall(r'href="([^"]+)"', page.text) == ["openapi.json"]
    operations, _ = operations_of(open_service)
    assert [path for _, path in operations if path not in page.text] == []
    assert [caller.http.get(path).status_code for path in ("/redoc", "/docs/oauth2-redirect")] == [404, 404]
