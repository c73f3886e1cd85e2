"""docker-compose.yml: the schema of the Compose specification, the settings of the code, and its scripts really run."""

import ast
import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from deployment import ROOT, compose, dockerfile, moved, run
from kvcairn_service.settings import CLIENT_VARIABLES, Settings
from serving import running_service

SERVICES = compose()["services"]
KNOWN = {f"KVCAIRN_{name.upper()}" for name in Settings.model_fields} | CLIENT_VARIABLES


def script(name: str) -> str:
    """A service's shell script, as the container's shell gets it."""
    text: str = SERVICES[name]["command"][0]
    return text.replace("$$", "$")


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Where a service's volumes appear: path → (volume or host path, read-only)."""
    parts = [each.split(":") for each in service.get("volumes", [])]
    return {part[1]: (part[0], part[2:] == ["ro"]) for part in parts}


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def test_the_file_obeys_the_compose_specification() -> None:
    vendored = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(vendored.read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(compose())


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_is_known_and_every_file_it_names_is_mounted(name: str) -> None:
    environment = SERVICES[name].get("environment", {})
    ours = {key: value for key, value in environment.items() if key.startswith("KVCAIRN_")}
    assert ours.keys() <= KNOWN
    for key, value in ours.items():
        if key.endswith("_FILE"):
            assert str(Path(value).parent) in mounts(SERVICES[name])


@pytest.mark.parametrize("name", SERVICES)
def test_every_volume_is_declared_and_every_mounted_file_exists(name: str) -> None:
    for source, _ in mounts(SERVICES[name]).values():
        assert (ROOT / source).is_file() if source.startswith("./") else source in compose()["volumes"]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"prometheus"}))
def test_every_image_of_ours_is_built_from_a_target_of_the_dockerfile(name: str) -> None:
    """All of them: Compose would look for an image without `build` in a registry, before it is built here."""
    build = SERVICES[name]["build"]
    assert build["dockerfile"] == "deploy/Dockerfile"
    assert build["target"] in dockerfile()


def test_only_loopback_of_the_host_is_published() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_a_stop_is_never_a_kill() -> None:
    assert seconds(SERVICES["kvcairn"]["stop_grace_period"]) > Settings.model_fields["drain_seconds"].default


def test_a_token_is_writable_only_where_it_is_made() -> None:
    for name, service in SERVICES.items():
        for source, read_only in mounts(service).values():
            made_here = (name, source) in {
                ("tokens", "tokens-admin"), ("tokens", "tokens-metrics"), ("tenant", "tokens-tenant"),
            }  # fmt: skip
            assert not source.startswith("tokens-") or read_only is not made_here


def test_only_the_service_and_the_two_setups_see_the_administrators_token() -> None:
    seen = {
        name for name, service in SERVICES.items() if "tokens-admin" in {each for each, _ in mounts(service).values()}
    }
    assert seen == {"tokens", "kvcairn", "tenant"}


def test_nothing_starts_before_what_it_needs() -> None:
    needs = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert needs["kvcairn"] == {"tokens": {"condition": "service_completed_successfully"}}
    assert needs["tenant"] == {"kvcairn": {"condition": "service_healthy"}}
    assert needs["client-a"] == {"tenant": {"condition": "service_completed_successfully"}}
    assert needs["client-b"] == {"client-a": {"condition": "service_completed_successfully"}}


def test_the_two_clients_share_the_tenant_and_the_prompt_but_not_name_and_question() -> None:
    options = [shlex.split(script(name).split("examples.fleet_client")[1]) for name in ("client-a", "client-b")]
    assert [each[0::2] for each in options] == [["--name", "--question"]] * 2
    assert len({tuple(each[1::2]) for each in options}) == 2
    assert mounts(SERVICES["client-a"]) == mounts(SERVICES["client-b"])


def test_the_clients_options_are_parameters_of_the_example() -> None:
    """Read from the source: importing it would bring torch, for which nothing else here waits."""
    tree = ast.parse((ROOT / "examples/fleet_client.py").read_text())
    main = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "main")
    assert {"name", "question"} <= {each.arg for each in main.args.args}


def test_the_scripts_make_tokens_that_the_service_takes(tmp_path: Path) -> None:
    """Runs both set-up containers' scripts by hand, the second against a service closed with the first one's tokens."""
    for name in ("admin", "metrics", "tenant"):
        (tmp_path / name).mkdir()
    places = {"/tokens": tmp_path}
    made = run("sh", "-euc", moved(script("tokens"), places), env={})
    assert made.returncode == 0, made.stderr
    files = {f"KVCAIRN_{name.upper()}_TOKEN_FILE": str(tmp_path / name / "token") for name in ("admin", "metrics")}
    with running_service(tmp_path / "data", env=files) as service:
        set_up = run("sh", "-euc", moved(script("tenant"), places), env={"KVCAIRN_URL": service.url})
        assert set_up.returncode == 0, set_up.stderr
        tokens = {name: (tmp_path / name / "token").read_text().strip() for name in ("admin", "metrics", "tenant")}
        assert statuses(service.url, tokens["tenant"]) == {"/v1/stats": 200, "/v1/tenants": 403, "/metrics": 403}
        assert statuses(service.url, tokens["metrics"])["/metrics"] == 200
        assert statuses(service.url, tokens["metrics"])["/v1/stats"] in {401, 403}
        assert statuses(service.url, tokens["admin"]) == {"/v1/stats": 200, "/v1/tenants": 200, "/metrics": 200}
        again = run("sh", "-euc", moved(script("tenant"), places), env={"KVCAIRN_URL": service.url})
        assert again.returncode == 0
        assert (tmp_path / "tenant/token").read_text().strip() == tokens["tenant"]


def statuses(url: str, token: str) -> dict[str, int]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
        return {path: client.get(path).status_code for path in ("/v1/stats", "/v1/tenants", "/metrics")}
