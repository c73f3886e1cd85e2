"""The sidecar: valid against the schemas of Kubernetes, in agreement with the code, and its script really runs."""

from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest

from deployment import dockerfile, manifests, moved, pod, run
from kvcairn_service.settings import CLIENT_VARIABLES, Settings
from kvcairn_storage.lmdb import map_bytes_for
from serving import running_service

POD = pod()
CONTAINERS = {each["name"]: each for each in [*POD["initContainers"], *POD["containers"]]}
SIDECAR = CONTAINERS["kvcairn"]
KNOWN = {f"KVCAIRN_{name.upper()}" for name in Settings.model_fields} | CLIENT_VARIABLES


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", [])}


def mounts(container: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Path → (volume, path inside it)."""
    return {each["mountPath"]: (each["name"], each.get("subPath", "")) for each in container["volumeMounts"]}


def template(kind: str) -> Any:
    return next(each for each in manifests() if each["kind"] == kind)["spec"]


@pytest.mark.parametrize("document", manifests(), ids=lambda each: each["kind"])
def test_every_document_obeys_the_schema_of_kubernetes(document: Any) -> None:
    kubernetes_validate.validate(document, "1.29", strict=True)
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_kvcairn_is_a_sidecar_and_starts_first() -> None:
    assert POD["initContainers"][0] is SIDECAR
    assert SIDECAR["restartPolicy"] == "Always"
    assert "startupProbe" in SIDECAR


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_variable_is_known_to_the_code(name: str) -> None:
    assert {each for each in environment(CONTAINERS[name]) if each.startswith("KVCAIRN_")} <= KNOWN


def test_a_service_named_kvcairn_cannot_change_the_settings() -> None:
    assert POD["enableServiceLinks"] is False


def test_the_port_is_the_images_and_the_services_point_at_it() -> None:
    port = SIDECAR["ports"][0]
    assert str(port["containerPort"]) == dockerfile()["service"].settings()["KVCAIRN_PORT"]
    assert port["name"] in {each["targetPort"] for each in template("Service")["ports"]}


def test_the_secrets_files_are_mounted_where_the_settings_look(secret_keys: set[str]) -> None:
    files = {Path(value) for name, value in environment(SIDECAR).items() if name.endswith("_FILE")}
    assert {str(each.parent) for each in files} == {"/run/secrets/kvcairn"}
    assert mounts(SIDECAR)["/run/secrets/kvcairn"] == ("kvcairn-admin", "")
    assert {each.name for each in files} == secret_keys


@pytest.fixture
def secret_keys() -> set[str]:
    """The keys that the command in the file's head puts into the Secret."""
    text = (Path(__file__).parents[2] / "deploy/kubernetes/sidecar.yaml").read_text()
    return {part.partition("=")[0] for part in text.split("--from-literal=")[1:]}


def test_every_mount_has_its_volume() -> None:
    volumes = {each["name"] for each in POD["volumes"]}
    claims = {each["metadata"]["name"] for each in template("StatefulSet")["volumeClaimTemplates"]}
    for container in CONTAINERS.values():
        assert {volume for volume, _ in mounts(container).values()} <= volumes | claims


def test_data_lies_in_the_volume_of_the_image() -> None:
    assert mounts(SIDECAR)[dockerfile()["service"].settings()["KVCAIRN_DATA"]] == ("kvcairn-data", "store")


def test_the_engine_sees_socket_and_tenant_token_but_no_secret_and_no_store() -> None:
    seen = mounts(CONTAINERS["engine"])
    assert seen["/run/kvcairn"] == mounts(SIDECAR)["/run/kvcairn"]
    assert seen["/run/kvcairn-token"] == ("kvcairn-data", "token")
    assert not {("kvcairn-admin", ""), ("kvcairn-data", "store")} & set(seen.values())


def test_engine_and_sidecar_use_one_socket() -> None:
    socket = SIDECAR["args"][SIDECAR["args"].index("--uds") + 1]
    assert environment(CONTAINERS["engine"])["KVCAIRN_URL"] == f"unix:{socket}"
    assert environment(CONTAINERS["kvcairn-token"])["KVCAIRN_URL"] == f"unix:{socket}"


def test_the_pods_group_is_the_images() -> None:
    assert str(POD["securityContext"]["fsGroup"]) == dockerfile()["service"].values("USER")[-1].split(":")[1]


@pytest.mark.parametrize("name", CONTAINERS)
def test_no_container_may_gain_rights_or_write_to_its_image(name: str) -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert CONTAINERS[name]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_stop_is_never_a_kill() -> None:
    assert POD["terminationGracePeriodSeconds"] > Settings.model_fields["drain_seconds"].default


def test_the_store_fits_its_volume_with_room_to_move() -> None:
    capacity = Settings.model_validate({"data": "/data", "capacity": environment(SIDECAR)["KVCAIRN_CAPACITY"]}).capacity
    claim = template("StatefulSet")["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    assert capacity is not None
    assert map_bytes_for(capacity) < int(claim.removesuffix("Gi")) << 30


def test_sidecar_script_and_probes_work_on_a_running_service(tmp_path: Path) -> None:
    """Starts the service with the sidecar's arguments and secret, probes it, and runs the token container's script."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("admin-token", "metrics-token"):
        (secrets / name).write_text(f"the-{name}\n")
    (tmp_path / "token").mkdir()
    places = {"/run/secrets/kvcairn": secrets, "/run/kvcairn-token": tmp_path / "token", "/run/kvcairn": tmp_path}
    settings = {name: moved(value, places) for name, value in environment(SIDECAR).items()}
    settings["KVCAIRN_CAPACITY"] = "64MiB"  # what the test's disk has room for
    arguments = [moved(each, places) for each in SIDECAR["args"] if each != "serve"]
    with running_service(tmp_path / "data", *arguments, env=settings) as service:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = SIDECAR[probe]["httpGet"]["path"]
            assert httpx.get(f"{service.url}{path}").status_code == 200
        container = CONTAINERS["kvcairn-token"]
        urls = {name: moved(value, places) for name, value in environment(container).items()}
        made = run(*container["command"], moved(container["args"][0], places), env=urls)
        assert made.returncode == 0, made.stderr
        token = tmp_path / "token/token"
        assert token.stat().st_mode & 0o777 == 0o640  # the engine reads it by the pod's group
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(tmp_path / "kvcairn.sock"))) as client:
            assert client.get("http://kvcairn/v1/stats", headers=headers).json()["tenant"] == "engine"
