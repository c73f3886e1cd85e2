"""ServiceMachine: random requests to a real service, each answer compared with what the model (book.py) says.

One service serves all examples; each example makes tenants of its own and deletes them at its end. All tenants use the
same layouts and prompts, with payloads of their own, so that a record of another tenant's would be seen at once.
"""

from typing import Any, ClassVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from service_samples import KINDS, missing, split
from torture.model.book import Book, Place, charged_bytes, eviction_faults
from torture.model.home import CAPACITY_BYTES, Home
from torture.model.house import DEFAULTS, Asked, House
from torture.model.prompts import BLOCK_TOKENS, BLOCKS, DOCUMENTS, FORGERIES, LAYOUTS, PROMPTS, made, place_of

WHO = st.sampled_from(["red", "green", "blue"])
WHICH, PROMPT, SPOT = st.integers(0, 1), st.integers(0, 1), st.integers(0, BLOCKS - 1)
KIND = st.sampled_from(["history", "history", "history", "state", "state", "window"])
QUOTA = st.sampled_from([None, None, 12 * 4096, 24 * 4096])
FORGED, IS_STRANGE = st.sampled_from([None] * 30 + [*FORGERIES]), st.sampled_from([False] * 7 + [True])
ITEMS = st.lists(st.tuples(KIND, SPOT, FORGED, IS_STRANGE), min_size=1, max_size=4)
NAMES = st.lists(st.tuples(KIND, SPOT), min_size=1, max_size=6)
WHO_GETS_NOTHING = 401


class ServiceMachine(RuleBasedStateMachine):
    """home: the service. restarts: how many an example may have."""

    home: ClassVar[Home]
    restarts: ClassVar[int]

    @initialize()
    def move_in(self) -> None:
        self.book = Book(dict.fromkeys(LAYOUTS, BLOCK_TOKENS))
        self.houses: dict[str, House] = {}
        self.example = self.home.next_number()
        self.restarts_left = self.restarts
        for who in ("red", "green"):
            self.set_tenant(who, None)
            for which in range(len(LAYOUTS)):
                self.register(who, which)

    # Tenants and tokens.

    @rule(who=WHO, quota_bytes=QUOTA)
    def set_tenant(self, who: str, quota_bytes: int | None) -> None:
        changes = {} if quota_bytes is None else {"quota_bytes": quota_bytes}
        document = self.home.admin("PUT", self._tenant(who), json=changes).json()
        house = self.houses.get(who) or self._new_house(who)
        house.settings = {"name": self._name(who), **DEFAULTS, **changes}
        self._same_settings(house, document)

    def _new_house(self, who: str) -> House:
        token = self.home.admin("POST", f"{self._tenant(who)}/tokens").json()["token"]
        self.houses[who] = House(self.home.next_number(), token, {})
        return self.houses[who]

    @rule(who=WHO, quota_bytes=QUOTA, codec=st.sampled_from(["raw", "zstd"]))
    def patch_tenant(self, who: str, quota_bytes: int | None, codec: str) -> None:
        answer = self.home.admin("PATCH", self._tenant(who), json={"quota_bytes": quota_bytes, "codec": codec})
        house = self.houses.get(who)
        assert answer.status_code == (200 if house else 404)
        if house:
            house.settings |= {"quota_bytes": quota_bytes, "codec": codec}
            self._same_settings(house, answer.json())

    def _same_settings(self, house: House, document: dict[str, Any]) -> None:
        assert {field: document[field] for field in house.settings} == house.settings

    @rule(who=WHO)
    def delete_tenant(self, who: str) -> None:
        house = self.houses.pop(who, None)
        assert self.home.admin("DELETE", self._tenant(who)).status_code == (204 if house else 404)
        if house:
            self.book.drop(house.number)
            for token in (house.token, *house.tokens.values()):
                assert self.home.ask(token, "GET", "/v1/stats").status_code == WHO_GETS_NOTHING

    @rule(who=WHO)
    def make_token(self, who: str) -> None:
        answer = self.home.admin("POST", f"{self._tenant(who)}/tokens")
        house = self.houses.get(who)
        assert answer.status_code == (200 if house else 404)
        if house:
            house.tokens[answer.json()["id"]] = answer.json()["token"]
            assert self.home.ask(answer.json()["token"], "GET", "/v1/stats").json()["tenant"] == self._name(who)

    @precondition(lambda self: any(house.tokens for house in self.houses.values()))
    @rule(data=st.data())
    def revoke_token(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from([who for who, house in self.houses.items() if house.tokens]))
        house = self.houses[who]
        token_id, token = house.tokens.popitem()
        assert self.home.admin("DELETE", f"{self._tenant(who)}/tokens/{token_id}").status_code == 204
        assert self.home.ask(token, "GET", "/v1/stats").status_code == WHO_GETS_NOTHING
        listed = self.home.admin("GET", f"{self._tenant(who)}/tokens").json()["tokens"]
        assert {each["id"] for each in listed} >= set(house.tokens)
        assert len(listed) == 1 + len(house.tokens)

    # Layouts.

    @rule(who=WHO, which=WHICH)
    def register(self, who: str, which: int) -> None:
        if (house := self.houses.get(who)) is None:
            return
        is_new = LAYOUTS[which] not in house.layouts
        answer = self.home.ask(house.token, "PUT", f"/v1/layouts/{LAYOUTS[which].hex()}", json=DOCUMENTS[which])
        assert answer.status_code == (201 if is_new else 200)
        house.layouts.add(LAYOUTS[which])

    @rule(who=WHO, which=WHICH)
    def delete_layout(self, who: str, which: int) -> None:
        if (house := self.houses.get(who)) is None:
            return
        there = LAYOUTS[which] in house.layouts
        answer = self.home.ask(house.token, "DELETE", f"/v1/layouts/{LAYOUTS[which].hex()}")
        assert answer.status_code == (204 if there else 404)
        house.layouts.discard(LAYOUTS[which])
        house.asked.pop(LAYOUTS[which], None)
        self.book.drop(house.number, LAYOUTS[which])

    # Storing.

    @rule(who=WHO, which=WHICH, prompt=PROMPT, items=ITEMS, writer=st.sampled_from("ab"))
    def store(self, who: str, which: int, prompt: int, items: list[tuple[Any, ...]], writer: str) -> None:
        if (house := self.houses.get(who)) is None:
            return
        if self._is_tight(house, which, len(items)):
            del items[1:]  # one at a time, so that the model knows for whom room was made
        spots = [place_of(which, prompt, spot, is_strange=is_strange) for _, spot, _, is_strange in items]
        records = [
            made(which, kind, spot, writer=f"{house.number}{writer}", forged=forged)
            for (kind, _, forged, _), spot in zip(items, spots, strict=True)
        ]
        self.book.requests += 1
        answer = self.home.ask(house.token, "POST", "/v1/records:store", content=b"".join(records))
        assert answer.status_code in (200, 507), answer.text
        told = {each["index"]: each["reason"] for each in answer.json()["rejected"]}
        counts = {"stored": 0, "present": 0}
        for index, ((kind, _, forged, _), spot, record) in enumerate(zip(items, spots, records, strict=True)):
            place = Place(house.number, LAYOUTS[which], kind, spot[0])
            expected = self._expected(house, place, spot, forged)
            reason = told.pop(index, None)
            if expected == "stored" and reason in ("quota", "full"):
                self._check_refusal(house, place, spot, record, reason)
                event(f"store: {reason}")
                continue
            assert reason == (None if expected in counts else expected), (index, items)
            if expected == "stored":
                self._stored(house, place, spot, record)
            elif expected == "present":
                self.book.use_perhaps([place])
            if expected in counts:
                counts[expected] += 1
            event(f"store: {reason or expected}")
            if expected == "framing":
                break
        assert told == {}
        assert {name: answer.json()[name] for name in counts} == counts
        assert answer.status_code == 200 or not any(counts.values())

    def _is_tight(self, house: House, which: int, records: int) -> bool:
        """Whether so many records may not fit without something else going."""
        need_bytes = records * charged_bytes(128 + 18_000 if which else 128 + 3_000)
        quota_bytes = house.settings["quota_bytes"] or CAPACITY_BYTES
        room_bytes = min(
            CAPACITY_BYTES - self.book.charged_bytes(), quota_bytes - self.book.charged_bytes(house.number)
        )
        return need_bytes > room_bytes

    def _expected(self, house: House, place: Place, spot: tuple[bytes, int, bytes], forged: str | None) -> str:
        if forged == "framing":
            return "framing"
        if forged in ("kind", "codec", "flags"):
            return forged  # judged before the layout is known
        if place.layout not in house.layouts:
            return "layout"
        return forged or self.book.verdict(place, spot[1], spot[2])

    def _check_refusal(
        self, house: House, place: Place, spot: tuple[bytes, int, bytes], record: bytes, reason: str
    ) -> None:
        """No room only where much of what there is may not go for this record: what it follows, and what it is in."""
        self.book.store(place, record, spot[1], spot[2])
        busy_bytes = sum(self.book.records[each].charged_bytes for each in self._busy(place))
        del self.book.records[place]
        limit_bytes = CAPACITY_BYTES if reason == "full" else house.settings["quota_bytes"]
        assert busy_bytes > 0.4 * limit_bytes, f"{reason}, though {busy_bytes} of {limit_bytes} are busy"

    def _busy(self, place: Place) -> set[Place]:
        block = place._replace(kind="history")
        return self.book.lineage([place, *([block] if block in self.book.records else [])])

    def _stored(self, house: House, place: Place, spot: tuple[bytes, int, bytes], record: bytes) -> None:
        self.book.store(place, record, spot[1], spot[2])
        self.book.use_perhaps([place])
        quota_bytes = house.settings["quota_bytes"]
        over_quota = quota_bytes is not None and self.book.charged_bytes(house.number) > quota_bytes
        over_capacity = self.book.charged_bytes() > CAPACITY_BYTES
        if not (over_quota or over_capacity):
            return
        gone = set(self.book.records) - set(self._existing())
        busy, limit_bytes = self._busy(place), quota_bytes if over_quota else CAPACITY_BYTES
        tenant = house.number if over_quota else None
        if not (over_quota and over_capacity):
            assert eviction_faults(self.book, gone, busy=busy, tenant=tenant, limit_bytes=limit_bytes) == []
        event(f"evicted {len(gone)} for {'quota' if over_quota else 'capacity'}")
        for each in gone:
            del self.book.records[each]
        assert self.book.charged_bytes() <= CAPACITY_BYTES

    # Reading.

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

    # Ends of the process.

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
        assert self._existing() == set(self.book.records)
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
            "tenant": self._name(who),
            "records": len(mine),
            "stored_bytes": sum(len(kept.record) for kept in mine),
            "charged_bytes": sum(kept.charged_bytes for kept in mine),
            "quota_bytes": house.settings["quota_bytes"],
            **{name: sum(getattr(each, name) for each in house.asked.values())
               for name in ("lookups", "asked_tokens", "hit_tokens")},
        }  # fmt: skip
        assert {name: stats[name] for name in expected} == expected

    def _existing(self) -> set[Place]:
        """Every record that the service has, of this example's tenants; not a use."""
        return {
            place
            for house in self.houses.values()
            for layout in house.layouts
            for place in self._existing_of(house, layout)
        }

    def _existing_of(self, house: House, layout: bytes) -> list[Place]:
        keys = [key for keys in PROMPTS[LAYOUTS.index(layout)] for key in keys]
        every = [Place(house.number, layout, kind, key) for key in keys for kind in KINDS]
        body = {"layout": layout.hex(), "records": [{"kind": each.kind, "key": each.key.hex()} for each in every]}
        there = self.home.ask(house.token, "POST", "/v1/records:exists", json=body).json()["present"]
        return [place for place, is_there in zip(every, there, strict=True) if is_there]

    def _name(self, who: str) -> str:
        return f"{who}-{self.example}"

    def _tenant(self, who: str) -> str:
        return f"/v1/tenants/{self._name(who)}"

    def teardown(self) -> None:
        try:
            self.check_everything()
        finally:
            for who in self.houses:
                self.home.admin("DELETE", self._tenant(who))
        assert self.home.admin("GET", "/v1/stats/all").json()["charged_bytes"] == 0
