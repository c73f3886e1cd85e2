"""The soak's callers: engines, a landlord, and who dawdles and hangs up. Each counts what it is told."""

import json
import random
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from service_samples import KINDS, RECORDS, canonical, chain, chain_records, fingerprint, layout_document, split
from sockets import head
from torture.soak.ledger import Ledger

BLOCKS, PROMPTS = 12, 40


class Client:
    """httpx with a token, whose every answer is noted."""

    def __init__(self, url: str, token: str, ledger: Ledger) -> None:
        self.url, self.token, self.ledger = url, token, ledger
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(verify=False), base_url=url, timeout=60, trust_env=False,
            headers={"authorization": f"Bearer {token}"},
        )  # fmt: skip

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        answer = self._http.request(method, path, **arguments)
        self.ledger.note(method, path, answer.status_code)
        return answer

    def close(self) -> None:
        self._http.close()


@dataclass(slots=True)
class Told:
    """What one tenant's callers were answered, summed up."""

    stored: int = 0
    deleted: int = 0
    lookups: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


class Engine:
    """Looks up, fetches, computes (in no time) and stores; and uses every other endpoint of a tenant now and then."""

    def __init__(self, seed: str, *, block_bytes: int) -> None:
        self.rng = random.Random(seed)
        self.document = layout_document(history_bytes=block_bytes, state_bytes=block_bytes // 4, model=f"soak-{seed}")
        self.layout = fingerprint(self.document).hex()
        self.told = Told()
        self._keys = [chain(self.document, BLOCKS, seed=prompt) for prompt in range(PROMPTS)]

    def start(self, client: Client) -> None:
        answer = client.ask("PUT", f"/v1/layouts/{self.layout}", content=canonical(self.document), headers=JSON)
        assert answer.status_code in (200, 201)
        self.told = Told()

    def act(self, client: Client) -> None:
        keys = self.rng.choice(self._keys)[: self.rng.randint(1, BLOCKS)]
        hit = self._look_up(client, keys)
        self._fetch(client, keys[:hit])
        if hit < len(keys):
            self._store(client, keys, hit)
        self.rng.choice([self._touch, self._exists, self._report, self._single, self._delete, self._put_bad])(
            client, keys
        )

    def _look_up(self, client: Client, keys: list[bytes]) -> int:
        body = {"layout": self.layout, "block_keys": [key.hex() for key in keys]}
        answer = client.ask("POST", "/v1/prefixes:lookup", json=body).json()
        self.told.lookups, self.told.asked_tokens = self.told.lookups + 1, self.told.asked_tokens + 8 * len(keys)
        self.told.hit_tokens += answer["hit_tokens"]
        blocks: int = answer["history_blocks"]
        return blocks

    def _fetch(self, client: Client, keys: list[bytes]) -> None:
        if not keys:
            return
        answer = client.ask("POST", "/v1/records:fetch", json=self.naming(keys))
        client.ledger.note_bytes(sent=len(answer.content))
        for key, got, sent in zip(keys, split(answer.content), chain_records(self.document, keys), strict=True):
            is_missing = got[6] == 1
            assert is_missing or got == sent, f"other bytes than were stored under {key.hex()}"

    def _store(self, client: Client, keys: list[bytes], hit: int) -> None:
        records = chain_records(self.document, keys)[hit:] + chain_records(self.document, keys, kind=2)[-1:]
        if self.rng.random() < 0.1:
            records.append(records[-1][:-1] + bytes([records[-1][-1] ^ 1]))
        body = b"".join(records)
        answer = client.ask("POST", "/v1/records:store", content=body, headers=TYPE)
        client.ledger.note_bytes(received=len(body))
        assert answer.status_code in (200, 507), answer.text
        told = answer.json()
        assert told["stored"] + told["present"] + len(told["rejected"]) == len(records)
        self.told.stored += told["stored"]
        self.told.rejected.update(each["reason"] for each in told["rejected"])

    def _touch(self, client: Client, keys: list[bytes]) -> None:
        assert client.ask("POST", "/v1/prefixes:touch", json=self.naming(keys)).status_code == 200

    def _exists(self, client: Client, keys: list[bytes]) -> None:
        assert client.ask("POST", "/v1/records:exists", json=self.naming(keys)).status_code == 200

    def _report(self, client: Client, keys: list[bytes]) -> None:
        body = {"layout": self.layout, "kind": "history", "key": keys[0].hex()}
        assert client.ask("POST", "/v1/records:report", json=body).json() == {"quarantined": False}

    def _single(self, client: Client, keys: list[bytes]) -> None:
        for method in ("GET", "HEAD"):
            assert client.ask(method, self.path(keys[-1])).status_code in (200, 404)

    def _delete(self, client: Client, keys: list[bytes]) -> None:
        self.told.deleted += client.ask("DELETE", self.path(keys[-1])).status_code == 204

    def _put_bad(self, client: Client, keys: list[bytes]) -> None:
        (record,) = chain_records(self.document, keys[:1])
        bad = record[:-1] + bytes([record[-1] ^ 1])
        answer = client.ask("PUT", self.path(keys[0]), content=bad, headers=TYPE)
        client.ledger.note_bytes(received=len(bad))
        assert (answer.status_code, answer.json()["reason"]) == (422, "checksum")

    def naming(self, keys: list[bytes]) -> dict[str, Any]:
        return {"layout": self.layout, "records": [{"kind": "history", "key": key.hex()} for key in keys]}

    def path(self, key: bytes) -> str:
        return f"/v1/records/{self.layout}/history/{key.hex()}"

    def present(self, client: Client) -> int:
        """How many of all records that there can be are there."""
        every = [{"kind": kind, "key": key.hex()} for keys in self._keys for key in keys for kind in KINDS]
        body = {"layout": self.layout, "records": every}
        return sum(client.ask("POST", "/v1/records:exists", json=body).json()["present"])


class Quitter(Engine):
    """Reads slowly, hangs up in the middle of an answer, and breaks off uploads."""

    def act(self, client: Client) -> None:
        keys = self._keys[0]
        if self.rng.random() < 0.2:
            self._store(client, keys, 0)
        self.rng.choice([self._read_some, self._send_some])(client, keys)

    def _read_some(self, client: Client, keys: list[bytes]) -> None:
        body = json.dumps(self.naming(keys)).encode()
        with self._connected(client) as sock:
            sock.sendall(_headed(client, "/v1/records:fetch", len(body), "application/json") + body)
            sock.settimeout(0.2)
            with suppress(TimeoutError):  # an answer of misses alone is short, and all there
                for _ in range(self.rng.randint(0, 3)):
                    sock.recv(1024)
                    time.sleep(0.002)
        client.ledger.note_cut("POST", "/v1/records:fetch")
        client.ledger.note_bytes(cut=sum(map(len, chain_records(self.document, keys))))

    def _send_some(self, client: Client, keys: list[bytes]) -> None:
        body = b"".join(chain_records(self.document, keys))
        with self._connected(client) as sock:
            sock.sendall(
                _headed(client, "/v1/records:store", len(body), RECORDS) + body[: self.rng.randrange(len(body))]
            )
        client.ledger.note_cut("POST", "/v1/records:store")
        client.ledger.note_bytes(cut=len(body))

    def _connected(self, client: Client) -> socket.socket:
        host, port = client.url.removeprefix("http://").split(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect((host, int(port)))
        return sock


class Landlord:
    """Makes a tenant with a token, a layout and a record, changes it, and deletes it; as the admin."""

    def __init__(self, seed: str) -> None:
        self._seed, self._count = seed, 0

    def act(self, admin: Client) -> None:
        self._count += 1
        path = f"/v1/tenants/lodger-{self._count % 5}"
        assert admin.ask("PUT", path, json={"codec": "raw"}).status_code == 200
        token = admin.ask("POST", f"{path}/tokens").json()["token"]
        lodger = Client(admin.url, token, admin.ledger)
        engine = Engine(f"{self._seed}-{self._count}", block_bytes=640)
        engine.start(lodger)
        engine.act(lodger)
        lodger.close()
        assert admin.ask("PATCH", path, json={"quota_bytes": 1 << 30}).status_code == 200
        assert admin.ask("DELETE", path).status_code == 204


JSON, TYPE = {"content-type": "application/json"}, {"content-type": RECORDS}


def _headed(client: Client, path: str, length: int, content_type: str) -> bytes:
    plain = head(path, length, content_type)
    return plain[:-2] + f"authorization: Bearer {client.token}\r\n\r\n".encode()
