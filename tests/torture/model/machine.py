"""ServiceMachine: random requests to a real service, each answer compared with what the model (book.py) says.

One service serves all examples; each example makes tenants of its own and deletes them at its end. All tenants use the
same layouts and prompts, with payloads of their own, so that a record of another tenant's would be seen at once.
"""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from service_samples import KINDS, missing, split
from torture.model.book import Place
from torture.model.house import Asked, House
from torture.model.prompts import BLOCK_TOKENS, BLOCKS, DOCUMENTS, LAYOUTS, PROMPTS
from torture.model.steps import KIND, PROMPT, SPOT, WHICH, WHO
from torture.model.store_steps import StoreSteps
from torture.model.tenant_steps import TenantSteps

NAMES = st.lists(st.tuples(KIND, SPOT), min_size=1, max_size=6)


class ServiceMachine(TenantSteps, StoreSteps):
    """All steps: these, and those that read."""

    @initialize()
    def move_in(self) -> None:
        for who, quota_bytes in (("red", 16 * 4096), ("green", None)):
            self.set_tenant(who, quota_bytes)
            for which in range(len(LAYOUTS)):
                self.register(who, which)

    @rule(who=WHO, which=WHICH, prompt=PROMPT, blocks=st.integers(1, BLOCKS))
    def look_up(self, who: str, which: int, prompt: int, blocks: int) -> None:
        if (house := self.houses.get(who)) is None:
            return
        keys = PROMPTS[which][prompt][:blocks]
        body = {"layout": LAYOUTS[which].hex(), "block_keys": [key.hex() for key in keys]}
        answer = self.home.ask(house.token, "POST", "/v1/prefixes:lookup", json=body)
        if LAYOUTS[which] not in house.layouts:
            assert answer.status_code == 409
            return
        run, states = self.book.run(house.number, LAYOUTS[which], keys)
        hit_tokens = run * BLOCK_TOKENS
        expected = {"history_blocks": run, "hit_tokens": hit_tokens, "state_tokens": states}
        assert {name: answer.json()[name] for name in expected} == expected
        asked = house.asked.setdefault(LAYOUTS[which], Asked())
        asked.lookups, asked.asked_tokens = asked.lookups + 1, asked.asked_tokens + blocks * BLOCK_TOKENS
        asked.hit_tokens += hit_tokens

    @rule(who=WHO, which=WHICH, prompt=PROMPT, names=NAMES, verb=st.sampled_from(["exists", "fetch", "touch"]))
    def ask_for_many(self, who: str, which: int, prompt: int, names: list[tuple[str, int]], verb: str) -> None:
        if (house := self.houses.get(who)) is None:
            return
        places = [Place(house.number, LAYOUTS[which], kind, PROMPTS[which][prompt][spot]) for kind, spot in names]
        body = {
            "layout": LAYOUTS[which].hex(),
            "records": [{"kind": each.kind, "key": each.key.hex()} for each in places],
        }
        self.book.requests += 1
        path = "/v1/prefixes:touch" if verb == "touch" else f"/v1/records:{verb}"
        answer = self.home.ask(house.token, "POST", path, json=body)
        if LAYOUTS[which] not in house.layouts:
            assert answer.status_code == 409
            return
        there = [place for place in places if place in self.book.records]
        if verb == "exists":
            assert answer.json()["present"] == [place in self.book.records for place in places]
            return
        if verb == "touch":
            assert answer.json() == {"touched": len(set(there))}
        else:
            assert split(answer.content) == [self._answer_for(which, place) for place in places]
        self.book.use(there)

    def _answer_for(self, which: int, place: Place) -> bytes:
        kept = self.book.records.get(place)
        return kept.record if kept else missing(DOCUMENTS[which], KINDS[place.kind], place.key)

    @rule(who=WHO, which=WHICH, prompt=PROMPT, kind=KIND, spot=SPOT, verb=st.sampled_from(["GET", "HEAD", "DELETE"]))
    def one_record(self, who: str, which: int, prompt: int, kind: str, spot: int, verb: str) -> None:
        if (house := self.houses.get(who)) is None:
            return
        place = Place(house.number, LAYOUTS[which], kind, PROMPTS[which][prompt][spot])
        self.book.requests += 1
        path = f"/v1/records/{place.layout.hex()}/{kind}/{place.key.hex()}"
        answer = self.home.ask(house.token, verb, path)
        kept = self.book.records.get(place)
        assert answer.status_code == ((204 if verb == "DELETE" else 200) if kept else 404)
        if kept is None:
            return
        assert verb != "GET" or answer.content == kept.record
        assert verb != "HEAD" or int(answer.headers["content-length"]) == len(kept.record)
        if verb == "GET":
            self.book.use([place])
        elif verb == "DELETE":
            del self.book.records[place]

    @rule(who=WHO, which=WHICH, prompt=PROMPT, kind=KIND, spot=SPOT)
    def report(self, who: str, which: int, prompt: int, kind: str, spot: int) -> None:
        if (house := self.houses.get(who)) is None:
            return
        body = {"layout": LAYOUTS[which].hex(), "kind": kind, "key": PROMPTS[which][prompt][spot].hex()}
        answer = self.home.ask(house.token, "POST", "/v1/records:report", json=body)
        is_known = LAYOUTS[which] in house.layouts
        assert answer.status_code == (200 if is_known else 409)
        assert not is_known or answer.json() == {"quarantined": False}

    @precondition(lambda self: self.restarts_left > 0 and bool(self.book.records))
    @rule(is_kill=st.booleans())
    def restart(self, is_kill: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
        self.restarts_left -= 1
        self.home.restart(by_kill=is_kill)
        if is_kill:
            self.book.lose_uses()
        for house in self.houses.values():
            house.asked.clear()
        self.check_everything()

    def check_everything(self) -> None:
        """Every record of every tenant, by its own address; and the statistics."""
        assert self.existing() == set(self.book.records)
        self.book.requests += 1
        for house in self.houses.values():
            for place, kept in self.book.records.items():
                if place.tenant == house.number:
                    path = f"/v1/records/{place.layout.hex()}/{place.kind}/{place.key.hex()}"
                    assert self.home.ask(house.token, "GET", path).content == kept.record
        self.book.use(self.book.records)
        for who, house in self.houses.items():
            self._check_stats(who, house)

    def _check_stats(self, who: str, house: House) -> None:
        stats = self.home.ask(house.token, "GET", "/v1/stats").json()
        mine = [kept for place, kept in self.book.records.items() if place.tenant == house.number]
        expected = {
            "tenant": self.name(who),
            "records": len(mine),
            "stored_bytes": sum(len(kept.record) for kept in mine),
            "charged_bytes": sum(kept.charged_bytes for kept in mine),
            "quota_bytes": house.settings["quota_bytes"],
            **{name: sum(getattr(each, name) for each in house.asked.values())
               for name in ("lookups", "asked_tokens", "hit_tokens")},
        }  # fmt: skip
        assert {name: stats[name] for name in expected} == expected

    def teardown(self) -> None:
        try:
            self.check_everything()
        finally:
            for who in self.houses:
                self.home.admin("DELETE", self.path(who))
        assert self.home.admin("GET", "/v1/stats/all").json()["charged_bytes"] == 0
