"""A real service process for the whole session, open and closed, and a caller that speaks the wire page's words."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service_caller import Caller
from serving import ServiceProcess, running_service

ADMIN, METRICS = "admin-secret-token", "metrics-secret-token"


@pytest.fixture(scope="session")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    directory = tmp_path_factory.mktemp("open")
    with running_service(directory / "data", "--uds", str(directory / "s"), "--capacity", "512MiB") as service:
        yield service


@pytest.fixture(scope="session")
def closed_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_METRICS_TOKEN": METRICS}
    with running_service(tmp_path_factory.mktemp("closed") / "data", env=env) as service:
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
