"""prometheus.yml and alerts.yml: every metric, label and route that they name is what a running service exposes.

The rules' own unit tests are deploy/alerts.test.yml; they run here wherever promtool is installed.
"""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import promql_parser as promql
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from deployment import ROOT, compose, dockerfile
from serving import running_service

RULES = [
    rule for group in yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"] for rule in group["rules"]
]
SCRAPED = {"job", "instance"}
"""Labels that Prometheus itself puts onto every series."""

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def parts(expression: Any) -> Iterator[Any]:
    """The expression and everything inside it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if (child := getattr(expression, name, None)) is not None:
            yield from parts(child)
    for child in getattr(expression, "args", []):
        yield from parts(child)


def selectors(rule: dict[str, Any]) -> list[Any]:
    return [each for each in parts(promql.parse(rule["expr"])) if isinstance(each, promql.VectorSelector)]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """What a service exposes after a lookup and a request or two."""
    with running_service(tmp_path_factory.mktemp("metrics") / "data") as service:
        httpx.get(f"{service.url}/v1/service").raise_for_status()
        httpx.post(f"{service.url}/v1/prefixes:lookup", json={"layout": "0" * 64, "block_keys": []})
        text = httpx.get(f"{service.url}/metrics").raise_for_status().text
    return list(text_string_to_metric_families(text))


@pytest.fixture(scope="module")
def exposed(families: list[Metric]) -> dict[str, list[dict[str, str]]]:
    """Metric name → the labels of each of its series; also those that have no series yet."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in families:
        for suffix in SUFFIXES[family.type]:
            name = family.name + suffix
            found[name] = [sample.labels for sample in family.samples if sample.name == name]
    return found


def test_the_rules_name_metrics_of_ours() -> None:
    named = {selector.name for rule in RULES for selector in selectors(rule)}
    assert len(RULES) == len({rule["alert"] for rule in RULES})
    assert len([name for name in named if name.startswith("kvcairn_")]) >= 6


@each_rule
def test_every_metric_of_a_rule_is_exposed(rule: dict[str, Any], exposed: dict[str, list[dict[str, str]]]) -> None:
    assert {each.name for each in selectors(rule)} <= exposed.keys() | {"up"}


@each_rule
def test_every_label_and_route_of_a_rule_is_exposed(
    rule: dict[str, Any], exposed: dict[str, list[dict[str, str]]]
) -> None:
    for selector in selectors(rule):
        series = exposed.get(selector.name, [])
        for matcher in selector.matchers.matchers:
            if matcher.name not in SCRAPED:
                assert any(matcher.name in labels for labels in series)
            if matcher.name == "route":
                assert any(labels["route"] == matcher.value for labels in series)


@each_rule
def test_every_rule_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description"}


def test_every_exposed_metric_is_in_the_operations_page(families: list[Metric]) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    told = [family for family in families if not family.name.endswith("_created")]  # the library's own, beside each
    names = {family.name + ("_total" if family.type == "counter" else "") for family in told}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_prometheus_scrapes_the_service_of_the_compose_file_with_its_token() -> None:
    scrape = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"][0]
    port = dockerfile()["service"].settings()["KVCAIRN_PORT"]
    services = compose()["services"]
    assert scrape["static_configs"] == [{"targets": [f"kvcairn:{port}"]}]
    assert "kvcairn" in services
    token = scrape["authorization"]["credentials_file"]
    assert token == services["kvcairn"]["environment"]["KVCAIRN_METRICS_TOKEN_FILE"]
    assert "tokens-metrics:/tokens/metrics:ro" in services["prometheus"]["volumes"]
    assert {rule["expr"] for rule in RULES if rule["alert"] == "KvcairnDown"} == {
        f'up{{job="{scrape["job_name"]}"}} == 0'
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "--syntax-only", "deploy/prometheus.yml"),
        ("check", "rules", "deploy/alerts.yml"),
        ("test", "rules", "deploy/alerts.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    checked = subprocess.run([promtool, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
