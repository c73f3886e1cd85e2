"""The HTTP API in a few verbs, for tests: what the wire page says, over httpx."""

from typing import Any

import httpx

from service_samples import RECORDS, canonical, fingerprint
from serving import ServiceProcess


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

    def pin(self, document: dict[str, Any], keys: list[bytes], **more: Any) -> httpx.Response:
        body = {"layout": fingerprint(document).hex(), "block_keys": [key.hex() for key in keys], "ttl_seconds": 3600}
        return self.http.post("/v1/prefixes:pin", json=body | more)

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


def operations_of(service: ServiceProcess, *, token: str | None = None) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Method and path of every operation that the service's own document lists, and the document."""
    with service.http(token=token) as http:
        document: dict[str, Any] = http.get("/openapi.json").json()
    return [(method.upper(), path) for path, found in document["paths"].items() for method in found], document
