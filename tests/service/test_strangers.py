"""Strangers: tenants who ask for what is another's learn nothing, not even that it is there."""

import contextlib
import http.client
import re
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from service_caller import Caller, operations_of
from service_samples import (
    HISTORY,
    RECORDS,
    canonical,
    chain,
    chain_records,
    fingerprint,
    layout_document,
    payload_of,
    record,
    split,
)
from serving import running_service

ADMIN = "admin-secret-token"
JSON = "application/json"


@dataclass(frozen=True)
class Named:
    """What a request names: one layout, one record of it, and a tenant's names. All of the same lengths."""

    document: dict[str, Any]
    seed: int
    tenant: str
    token_id: str
    pin: str

    @property
    def keys(self):
        return chain(self.document, 2, seed=self.seed)

    def parameters(self):
        """Values of path parameters, by name."""
        layout = fingerprint(self.document).hex()
        return {
            "fingerprint": layout, "layout": layout, "kind": "history", "key": self.keys[0].hex(),
            "name": self.tenant, "token_id": self.token_id, "id": self.pin,
        }  # fmt: skip

    def texts(self):
        """Every text that an answer may repeat."""
        return [
            *(key.hex() for key in self.keys), fingerprint(self.document).hex(), self.document["model"],
            self.tenant, self.token_id, self.pin,
        ]  # fmt: skip


def body_of(method, path, named):
    """Body and content type of a request; an operation that is not known here fails, so that a new one is added."""
    layout, keys = fingerprint(named.document).hex(), [key.hex() for key in named.keys]
    prefix = {"layout": layout, "block_keys": keys}
    whole = b"".join(chain_records(named.document, named.keys))
    bodies: dict[tuple[str, str], Any] = {
        ("PUT", "/v1/layouts/{fingerprint}"): named.document,
        ("POST", "/v1/prefixes:lookup"): prefix,
        ("POST", "/v1/prefixes:touch"): prefix,
        ("POST", "/v1/prefixes:pin"): {**prefix, "ttl_seconds": 60},
        ("POST", "/v1/records:exists"): Caller.naming(named.document, *[("history", key) for key in named.keys]),
        ("POST", "/v1/records:fetch"): Caller.naming(named.document, *[("history", key) for key in named.keys]),
        ("POST", "/v1/records:report"): {"layout": layout, "kind": "history", "key": keys[0]},
        ("POST", "/v1/records:store"): whole,
        ("PUT", "/v1/records/{layout}/{kind}/{key}"): whole[: len(whole) // 2],
        ("PUT", "/v1/tenants/{name}"): {},
        ("PATCH", "/v1/tenants/{name}"): {},
        ("POST", "/v1/records:purge"): {"tenant": named.tenant, "layout": layout},
    }
    found = bodies.get((method, path))
    if isinstance(found, bytes):
        return found, RECORDS
    return (None, None) if found is None else (canonical(found), JSON)


class TestWalls:
    """For every operation: what another tenant has answers as what nobody has."""

    @pytest.fixture
    def asked(self, closed_service):
        return operations_of(closed_service, token=ADMIN)

    @pytest.fixture
    def tenants(self, admin, tenant_caller):
        """The one who has something, the two who ask, and what the one has and nobody has."""
        unique = uuid.uuid4().hex[:8]
        holder, here, there = (tenant_caller(f"{name}-{unique}") for name in ("holder", "asking", "facing"))
        document, other = layout_document(), layout_document()
        token_id = admin.http.get(f"/v1/tenants/holder-{unique}/tokens").json()["tokens"][0]["id"]
        held = Named(document, 1, f"holder-{unique}", token_id, "0" * 32)
        holder.register(document)
        assert holder.store(b"".join(chain_records(document, held.keys))).json()["stored"] == 2
        pinned = holder.http.post(
            "/v1/prefixes:pin",
            json={"layout": fingerprint(document).hex(), "block_keys": [held.keys[0].hex()], "ttl_seconds": 60},
        )
        assert pinned.status_code == 201
        held = Named(document, 1, f"holder-{unique}", token_id, pinned.json()["id"])
        nothing = Named(other, 2, f"nobody-{unique}", uuid.uuid4().hex[:12], uuid.uuid4().hex)
        yield holder, {"here": (here, f"asking-{unique}"), "there": (there, f"facing-{unique}")}, held, nothing
        assert holder.fetch(document, *[("history", key) for key in held.keys]).content == b"".join(
            chain_records(document, held.keys)
        )

    def test_every_operation_with_a_body_is_asked_with_one(self, asked, tenants):
        operations, document = asked
        named = tenants[2]
        assert len(operations) > 25
        for method, path in operations:
            has_body = "requestBody" in document["paths"][path][method.lower()]
            assert has_body == (body_of(method, path, named)[0] is not None), f"{method} {path}: see body_of"

    @pytest.mark.parametrize("stage", ["neither layout is registered", "both layouts are registered"])
    def test_what_another_tenant_has_is_answered_as_what_nobody_has(self, asked, tenants, stage):
        _, asking, held, nothing = tenants
        # The second stage asks for records of one layout, which the asking tenants have as well.
        if stage.startswith("both"):
            nothing = Named(held.document, 2, nothing.tenant, nothing.token_id, nothing.pin)
        for method, path in asked[0]:
            answers = [
                self._answer(asking[who], named, method, path, is_registered=stage.startswith("both"))
                for who, named in (("here", held), ("there", nothing))
            ]
            assert answers[0] == answers[1], f"{method} {path}"

    @staticmethod
    def _answer(asking, named, method, path, *, is_registered):
        """Status, headers and body, but for request id and date, with all that was named or is its own put out."""
        caller, own_name = asking
        if is_registered:
            caller.register(named.document)
        tenant_id = caller.http.get("/v1/service").json()["tenant_id"]
        body, content_type = body_of(method, path, named)
        headers = {"content-type": content_type} if content_type else {}
        answer = caller.http.request(method, path.format(**named.parameters()), content=body, headers=headers)
        caller.http.delete(f"/v1/layouts/{fingerprint(named.document).hex()}")
        text = _without_headers(answer)
        for known in (*named.texts(), own_name, tenant_id, answer.headers["x-request-id"]):
            text = text.replace(known.encode(), b"*" * len(known))
        kept = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
        return answer.status_code, kept, _without_moments(text)

    def test_what_others_store_changes_nothing_that_a_tenant_counts(self, tenants, admin):
        """Statistics, and metrics, whose labels would name others, are not to be had at all."""
        holder, asking, held, _ = tenants
        caller, own_name = asking["here"]
        before = caller.http.get("/v1/stats").content
        holder.store(b"".join(chain_records(held.document, chain(held.document, 5, seed=9))))
        holder.lookup(held.document, held.keys)
        assert caller.http.get("/v1/stats").content == before
        assert caller.http.get("/metrics").status_code == 403
        assert own_name in admin.http.get("/v1/stats/all").text


def _without_headers(answer):
    """What a fetch answers: of each record whether it is missing, and its payload, since key and checksum differ."""
    if answer.headers.get("content-type") != RECORDS:
        return answer.content
    return b"".join(each[:64] + each[128:] for each in split(answer.content)).replace(answer.content[32:64], b"#")


def _without_moments(text):
    """Of pins and the like: seconds since 1970, which differ by a moment."""
    return re.sub(rb"\b1[0-9]{9}\.[0-9]+", b"<moment>", text)


def test_a_tenant_made_anew_sees_nothing_of_the_old_one_not_even_after_a_restart(tmp_path):
    document = layout_document()
    keys = chain(document, 3)
    label = f'layout="{fingerprint(document).hex()[:12]}"'
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN}
    ids, generations = [], set()
    for _ in range(2):
        with running_service(tmp_path / "data", env=env) as service, service.http(token=ADMIN) as admin:
            for _ in range(2):
                admin.delete("/v1/tenants/phoenix")
                admin.put("/v1/tenants/phoenix", json={})
                token = admin.post("/v1/tenants/phoenix/tokens").json()["token"]
                with service.http(token=token) as mine:
                    caller = Caller(mine)
                    about = mine.get("/v1/service").json()
                    ids.append(about["tenant_id"])
                    generations.add(about["generation"])
                    assert label not in admin.get("/metrics").text
                    assert mine.get("/v1/layouts").json() == {"layouts": []}
                    assert mine.get("/v1/pins").json()["pins"] == []
                    assert caller.lookup(document, keys).status_code == 409
                    caller.register(document)
                    assert caller.exists(document, *[("history", key) for key in keys]) == [False] * 3
                    fresh = mine.get("/v1/stats").json()
                    counted = ("records", "stored_bytes", "charged_bytes", "lookups", "asked_tokens", "hit_tokens")
                    assert [fresh[each] for each in counted] == [0] * 6
                    assert fresh["kinds"] == []
                    assert caller.store(b"".join(chain_records(document, keys))).json()["stored"] == 3
                    assert caller.lookup(document, keys).json()["history_blocks"] == 3
                    assert label in admin.get("/metrics").text
    assert len(set(ids)) == 4, "an id is never used again"
    assert len(generations) == 1, "which tells of the directory, and of no tenant"


EVIL = [
    "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2Fetc%2Fpasswd", "%00", "a%00b", "%252e%252e", "~root", "$(id)",
    "%60id%60", "{{12345*54321}}", "%ff%fe", "a%0d%0aset-cookie:x", "x" * 3000, "C:%5Cwindows",
    "file:%2F%2F%2Fetc%2Fpasswd",
]  # fmt: skip


def test_no_parameter_of_any_path_is_taken_for_a_file_or_for_code(open_service, open_directory):
    """Everything that a path can carry, in the place of each of its parameters, byte for byte as it is written."""
    operations, _ = operations_of(open_service)
    before = sorted(open_directory.parent.rglob("*"))
    named = Named(layout_document(), 1, "nobody", "0" * 12, "0" * 32)
    tried = 0
    with contextlib.closing(http.client.HTTPConnection(open_service.url.removeprefix("http://"), timeout=30)) as line:
        for method, path in operations:
            for target in evil_targets(path, named):
                answer, said = sent_as_written(line, method, target, *body_of(method, path, named))
                assert answer.status in (400, 404, 405, 422), (method, target, answer.status, said[:200])
                assert method == "HEAD" or answer.getheader("content-type") == "application/problem+json"
                assert b"root:" not in said
                assert b"670592745" not in said, "the product: nothing that a path carries is evaluated"
                assert answer.getheader("set-cookie") is None
                tried += 1
    assert tried > 200
    assert sorted(open_directory.parent.rglob("*")) == before
    assert "unexpected error" not in open_service.log()


def evil_targets(path, named):
    """The path with each of its parameters in turn replaced by each of the values, the others as they should be."""
    for parameter in re.findall(r"\{(\w+)\}", path):
        for value in EVIL:
            yield path.format(**(named.parameters() | {parameter: value}))


def sent_as_written(line, method, target, body, content_type):
    """By http.client, which leaves dots and percents in a path alone; the answer and its body."""
    line.putrequest(method, target, skip_accept_encoding=True)
    line.putheader("content-length", str(len(body or b"")))
    line.putheader("content-type", content_type or JSON)
    line.endheaders(body)
    answer = line.getresponse()
    return answer, answer.read()


def test_a_record_of_another_tenant_is_no_parent_and_no_conflict(tenant_caller):
    """A forged position under another's key: were keys shared, the first writer's position would show."""
    one, other = tenant_caller("rightful"), tenant_caller("forging")
    document = layout_document()
    (key,) = chain(document, 1)
    for caller in (one, other):
        caller.register(document)
    assert one.store(chain_records(document, [key])[0]).json()["stored"] == 1
    forged = record(document, HISTORY, key, position=16, parent=b"p" * 16, payload=payload_of(document, HISTORY, key))
    assert other.store(forged).json() == {"stored": 1, "present": 0, "rejected": []}
    assert one.fetch(document, ("history", key)).content == chain_records(document, [key])[0]
