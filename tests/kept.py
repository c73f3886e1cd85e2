"""What a tenant of a real service was told is stored, and that it is: the oracle of tests that harm the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from service_caller import Caller
from service_samples import chain, chain_records, layout_document
from serving import ServiceProcess

ADMIN = "secret"
ENV = {"KVCAIRN_ADMIN_TOKEN": ADMIN}
RECORD_BYTES, LARGE_BYTES = 100_000, 20_000_000


class Kept:
    """A tenant's records that were acknowledged, and what must be true of them for ever."""

    def __init__(self, service: ServiceProcess) -> None:
        with service.http(token=ADMIN) as http:
            assert http.put("/v1/tenants/t", json={}).status_code == 200
            self.token = http.post("/v1/tenants/t/tokens").json()["token"]
        self.document = layout_document(history_bytes=RECORD_BYTES)
        self.large = layout_document(history_bytes=LARGE_BYTES)
        self.keys = chain(self.document, 40)
        self.records = chain_records(self.document, self.keys)
        self.stored = 0
        with self.caller(service) as caller:
            for document in (self.document, self.large):
                assert caller.register(document).status_code == 201

    @contextmanager
    def caller(self, service: ServiceProcess) -> Iterator[Caller]:
        with service.http(token=self.token) as http:
            yield Caller(http)

    def store(self, service: ServiceProcess, records: int) -> dict[str, Any]:
        """Store the next records, and count those that are acknowledged; the answer, with its status."""
        with self.caller(service) as caller:
            answer = caller.store(b"".join(self.records[self.stored : self.stored + records]))
        document: dict[str, Any] = answer.json()
        self.stored += document.get("stored", 0)
        return {"status": answer.status_code, "retry": answer.headers.get("retry-after"), **document}

    def check_reading(self, service: ServiceProcess) -> None:
        """All that was acknowledged is there, byte for byte, in every way of asking."""
        asked = [("history", key) for key in self.keys[: self.stored]]
        with self.caller(service) as caller:
            assert caller.lookup(self.document, self.keys).json()["history_blocks"] >= self.stored
            assert caller.fetch(self.document, *asked).content == b"".join(self.records[: self.stored])
            one = caller.http.get(caller.path(self.document, "history", self.keys[0]))
            assert (one.status_code, one.content) == (200, self.records[0])
