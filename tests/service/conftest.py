"""A real service process for the whole session, open and closed, and a caller that speaks the wire page's words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service_caller import Caller
from serving import ServiceProcess, running_service

ADMIN, METRICS = "admin-secret-token", "metrics-secret-token"


@pytest.fixture(scope="session")
def open_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the open service."""
    return tmp_path_factory.mktemp("open") / "data"


@pytest.fixture(scope="session")
def open_service(open_directory: Path) -> Iterator[ServiceProcess]:
    with running_service(open_directory, "--uds", f"{open_directory}.socket", "--capacity", "512MiB") as service:
        yield service


@pytest.fixture(scope="session")
def closed_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """It listens everywhere, as only a closed one may, and logs JSON."""
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_METRICS_TOKEN": METRICS}
    data = tmp_path_factory.mktemp("closed") / "data"
    with running_service(data, "--host", "0.0.0.0", "--log-format", "json", env=env) as service:  # noqa: S104
        service.url = service.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        yield service


@pytest.fixture(scope="session")
def narrow_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One with low limits: records of 8 MiB, memory for one of them and small ones, eight requests, 64 keys."""
    env = {
        "KVCAIRN_MAX_RECORD_BYTES": "8MiB",
        "KVCAIRN_UPLOAD_MEMORY_BYTES": "16MiB",
        "KVCAIRN_MAX_BODY_BYTES": "64MiB",
        "KVCAIRN_MAX_REQUESTS": "8",
        "KVCAIRN_MAX_KEYS": "64",
    }
    with running_service(tmp_path_factory.mktemp("narrow") / "data", env=env) as service:
        yield service


@pytest.fixture
def caller(open_service: ServiceProcess) -> Iterator[Caller]:
    with open_service.http() as http:
        yield Caller(http)


@pytest.fixture
def admin(closed_service: ServiceProcess) -> Iterator[Caller]:
    with closed_service.http(token=ADMIN) as http:
        yield Caller(http)


@pytest.fixture
def tenant_caller(closed_service: ServiceProcess, admin: Caller) -> Iterator[Any]:
    """Make a tenant of that name, and a caller that holds a token of it."""
    opened: list[httpx.Client] = []

    def make(name: str, **settings: Any) -> Caller:
        assert admin.http.put(f"/v1/tenants/{name}", json=settings).status_code == 200
        token = admin.http.post(f"/v1/tenants/{name}/tokens").json()["token"]
        opened.append(closed_service.http(token=token))
        return Caller(opened[-1])

    yield make
    for http in opened:
        http.close()
