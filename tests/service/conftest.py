"""A real service process for the whole session, open and closed, and a caller that speaks the wire page's words."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from service_samples import RECORDS, canonical, fingerprint
from serving import ServiceProcess, running_service

ADMIN, METRICS = "admin-secret-token", "metrics-secret-token"


class Caller:
    """The API in a few verbs; every method returns the httpx response."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def register(self, document: dict[str, Any]) -> httpx.Response:
        url = f"/v1/layouts/{fingerprint(document).hex()}"
        return self.http.put(url, content=canonical(document), headers={"content-type": "application/json"})

    def store(self, body: Any, content_type: str = RECORDS) -> httpx.Response:
        return self.http.post("/v1/records:store", content=body, headers={"content-type": content_type})

    def lookup(self, document: dict[str, Any], keys: list[bytes]) -> httpx.Response:
        body = {"layout": fingerprint(document).hex(), "block_keys": [key.hex() for key in keys]}
        return self.http.post("/v1/prefixes:lookup", json=body)

    def fetch(self, document: dict[str, Any], *asked: tuple[str, bytes]) -> httpx.Response:
        return self.http.post("/v1/records:fetch", json=self.naming(document, *asked))

    def exists(self, document: dict[str, Any], *asked: tuple[str, bytes]) -> list[bool]:
        found: list[bool] = self.http.post("/v1/records:exists", json=self.naming(document, *asked)).json()["present"]
        return found

    @staticmethod
    def naming(document: dict[str, Any], *asked: tuple[str, bytes]) -> dict[str, Any]:
        records = [{"kind": kind, "key": key.hex()} for kind, key in asked]
        return {"layout": fingerprint(document).hex(), "records": records}

    @staticmethod
    def path(document: dict[str, Any], kind: str, key: bytes) -> str:
        return f"/v1/records/{fingerprint(document).hex()}/{kind}/{key.hex()}"

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics; 0 where there is none."""
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        for line in self.http.get("/metrics").text.splitlines():
            if line.split("{")[0].split(" ")[0] == name and all(each in line for each in wanted):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


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
