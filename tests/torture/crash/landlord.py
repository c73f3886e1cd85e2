"""Landlord: makes, changes, fills and deletes tenants. After a kill each is as it was before a request or after it."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from service_caller import Caller
from service_samples import chain, chain_records, layout_document
from torture.crash.journal import Name
from torture.crash.worker import Gate, Worker, fetch

TENANTS, BLOCKS = 3, 8
DEFAULTS: dict[str, Any] = {
    "strategy": {"kind": "anchored"}, "codec": "auto", "quota_bytes": None, "ttl_seconds": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """All that there is of one tenant. unknown_tokens: made by a request whose answer never came.

    tokens: their text by id. blocks: how many of the chain are stored; None: not to be seen without a token.
    """

    settings: dict[str, Any]
    tokens: dict[str, str]
    unknown_tokens: int = 0
    has_layout: bool = False
    blocks: int | None = 0


class Landlord(Worker):
    """Its tenants share one document and one prompt, so that one made anew would see what an old one left."""

    def __init__(self, rng: random.Random, *, keeps_all: bool) -> None:
        super().__init__(rng)
        self._keeps_all = keeps_all
        self._document = layout_document(history_bytes=5_000, model=f"landlord-{rng.getrandbits(64):x}")
        self._keys = chain(self._document, BLOCKS)
        self._records = chain_records(self._document, self._keys)
        self._may_be: dict[str, list[House | None]] = {f"house-{number}": [None] for number in range(TENANTS)}
        self._every_token: dict[str, dict[str, str]] = {name: {} for name in self._may_be}

    @property
    def houses(self) -> dict[str, House]:
        """Every tenant that is there, once nothing is in doubt."""
        return {name: houses[0] for name, houses in self._may_be.items() if houses[0] is not None}

    def step(self, http: httpx.Client, gate: Gate) -> None:  # noqa: ARG002 - as every worker's
        name = self.rng.choice(list(self._may_be))
        (house,) = self._may_be[name]
        if house is None:
            self._make(http, name)
        elif not house.tokens:
            self._make_token(http, name, house)
        else:
            acts = [self._set, self._patch, self._make_token, self._revoke, self._fill, self._delete]
            self.rng.choices(acts, [2, 3, 2, 2, 8, 2])[0](http, name, house)

    def _expect(self, name: str, *houses: House | None) -> None:
        """What the tenant is when the request is answered comes last; what it may be without an answer before that."""
        self._may_be[name] = [*self._may_be[name], *houses]

    def _answered(self, name: str, house: House | None) -> None:
        self._may_be[name] = [house]

    def _make(self, http: httpx.Client, name: str) -> None:
        house = House(settings={"name": name, **DEFAULTS, **self._some_settings()}, tokens={})
        self._expect(name, house)
        assert _known(http.put(f"/v1/tenants/{name}", json=house.settings)) == house.settings
        self._answered(name, house)

    def _set(self, http: httpx.Client, name: str, house: House) -> None:
        changes = self._some_settings()
        after = replace(house, settings={"name": name, **DEFAULTS, **changes})
        self._expect(name, after)
        assert _known(http.put(f"/v1/tenants/{name}", json=changes)) == after.settings
        self._answered(name, after)

    def _patch(self, http: httpx.Client, name: str, house: House) -> None:
        changes = self._some_settings()
        after = replace(house, settings={**house.settings, **changes})
        self._expect(name, after)
        assert _known(http.patch(f"/v1/tenants/{name}", json=changes)) == after.settings
        self._answered(name, after)

    def _some_settings(self) -> dict[str, Any]:
        every = {
            "strategy": {"kind": "periodic", "every_tokens": self.rng.randint(1, 4096)},
            "codec": self.rng.choice(["raw", "zstd", "shuffle-zstd"]),
            "quota_bytes": self.rng.randint(1 << 20, 1 << 30),
            "ttl_seconds": self.rng.randint(10_000, 20_000),
        }
        return {field: every[field] for field in self.rng.sample(list(every), self.rng.randint(1, 4))}

    def _make_token(self, http: httpx.Client, name: str, house: House) -> None:
        self._expect(name, replace(house, unknown_tokens=house.unknown_tokens + 1))
        made = http.post(f"/v1/tenants/{name}/tokens").json()
        self._every_token[name][made["id"]] = made["token"]
        self._answered(name, replace(house, tokens={**house.tokens, made["id"]: made["token"]}))

    def _revoke(self, http: httpx.Client, name: str, house: House) -> None:
        gone = self.rng.choice(list(house.tokens))
        after = replace(house, tokens={each: text for each, text in house.tokens.items() if each != gone})
        self._expect(name, after)
        assert http.delete(f"/v1/tenants/{name}/tokens/{gone}").status_code == 204
        self._answered(name, after)

    def _fill(self, http: httpx.Client, name: str, house: House) -> None:
        token = self.rng.choice(list(house.tokens.values()))
        caller = Caller(_Bearing(http, token))  # type: ignore[arg-type]
        if not house.has_layout:
            after = replace(house, has_layout=True)
            self._expect(name, after)
            assert caller.register(self._document).status_code == 201
            self._answered(name, after)
            return
        stored = (house.blocks or 0) if self._keeps_all else 0
        sent = range(stored, BLOCKS + 1)[: self.rng.randint(2, 5)]
        ahead = [replace(house, blocks=max(house.blocks or 0, blocks)) for blocks in sent]
        self._expect(name, *ahead)
        answer = caller.store(b"".join(self._records[stored : sent[-1]]) or self._records[0])
        assert answer.status_code == 200, answer.text
        assert answer.json()["rejected"] == []
        self._answered(name, ahead[-1])

    def _delete(self, http: httpx.Client, name: str, house: House) -> None:  # noqa: ARG002 - as its neighbours
        self._expect(name, None)
        assert http.delete(f"/v1/tenants/{name}").status_code == 204
        self._answered(name, None)

    def faults(self, http: httpx.Client) -> list[str]:
        """Ask a new service for every tenant and token that ever was, and learn from it."""
        faults = []
        for name, houses in self._may_be.items():
            seen = self._observe(http, name)
            right = [house for house in houses if _agree(house, seen, keeps_all=self._keeps_all)]
            if not right:
                faults.append(f"tenant {name} is {seen}, and may be one of {houses}")
            if right and right[0] and seen and seen.blocks is None:
                seen = replace(seen, blocks=right[0].blocks, has_layout=right[0].has_layout)
            self._answered(name, seen)
        return faults

    def _observe(self, http: httpx.Client, name: str) -> House | None:
        answer = http.get(f"/v1/tenants/{name}")
        valid = {each: text for each, text in self._every_token[name].items() if _is_valid(http, text)}
        if answer.status_code == 404:
            assert not valid, f"tokens of the deleted tenant {name} are valid: {list(valid)}"
            return None
        listed = {each["id"] for each in http.get(f"/v1/tenants/{name}/tokens").json()["tokens"]}
        assert set(valid) <= listed, f"tokens {set(valid) - listed} of {name} are valid, and not listed"
        house = House(settings=_known(answer), tokens=valid, unknown_tokens=len(listed) - len(valid), blocks=None)
        return self._look_inside(house, _Bearing(http, next(iter(valid.values())))) if valid else house

    def _look_inside(self, house: House, http: "_Bearing") -> House:
        layouts = [each["fingerprint"] for each in http.get("/v1/layouts").json()["layouts"]]
        names = [Name(bytes.fromhex(layouts[0]), "history", key) for key in self._keys] if layouts else []
        found = list(fetch(http, names, {name.layout: self._document for name in names}).values())  # type: ignore[arg-type]
        blocks = sum(record is not None for record in found)
        assert found[:blocks] == self._records[:blocks], f"{house} has other records than were stored"
        return replace(house, has_layout=bool(layouts), blocks=blocks)


def _agree(house: House | None, seen: House | None, *, keeps_all: bool) -> bool:
    """Whether the tenant may be what is seen. Without a token, or where records may be evicted, these do not count."""
    if house is None or seen is None:
        return house is seen
    if seen.blocks is None:
        house = replace(house, blocks=None, has_layout=seen.has_layout)
    elif not keeps_all and seen.blocks <= (house.blocks or 0):
        house = replace(house, blocks=seen.blocks)
    return house == seen


def _known(answer: httpx.Response) -> dict[str, Any]:
    """A tenant's document, as far as this test knows its fields."""
    assert answer.status_code == 200, answer.text
    document = answer.json()
    return {field: document[field] for field in ("name", *DEFAULTS)}


def _is_valid(http: httpx.Client, token: str) -> bool:
    status = _Bearing(http, token).get("/v1/stats").status_code
    assert status in (200, 401)
    return status == 200


class _Bearing:
    """A client of the admin's that sends another token, over the same connection."""

    def __init__(self, http: httpx.Client, token: str) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {token}"}

    def __getattr__(self, verb: str) -> Callable[..., httpx.Response]:
        """get, put and post, as httpx has them."""

        def call(url: str, *, headers: Mapping[str, str] | None = None, **arguments: Any) -> httpx.Response:
            return getattr(self._http, verb)(url, headers={**(headers or {}), **self._headers}, **arguments)

        return call
