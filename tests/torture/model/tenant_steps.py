"""Steps of the admin, and of a tenant that registers and deletes layouts."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from torture.model.house import DEFAULTS, House
from torture.model.prompts import DOCUMENTS, LAYOUTS
from torture.model.steps import WHICH, WHO, Steps

QUOTA = st.sampled_from([None, None, 12 * 4096, 24 * 4096])
WHO_GOES = st.sampled_from(["blue", "blue", "blue", "blue", "red", "green"])
"""Mostly the one that has little, so that the others fill the store."""

UNAUTHENTICATED = 401


class TenantSteps(Steps):
    """Tenants, tokens and layouts."""

    @rule(who=WHO, quota_bytes=QUOTA)
    def set_tenant(self, who: str, quota_bytes: int | None) -> None:
        changes = {} if quota_bytes is None else {"quota_bytes": quota_bytes}
        document = self.home.admin("PUT", self.path(who), json=changes).json()
        house = self.houses.get(who) or self._new_house(who)
        house.settings = {"name": self.name(who), **DEFAULTS, **changes}
        self._same_settings(house, document)

    def _new_house(self, who: str) -> House:
        token = self.home.admin("POST", f"{self.path(who)}/tokens").json()["token"]
        self.houses[who] = House(self.home.next_number(), token, {})
        return self.houses[who]

    @rule(who=WHO, quota_bytes=QUOTA, codec=st.sampled_from(["raw", "zstd"]))
    def patch_tenant(self, who: str, quota_bytes: int | None, codec: str) -> None:
        answer = self.home.admin("PATCH", self.path(who), json={"quota_bytes": quota_bytes, "codec": codec})
        house = self.houses.get(who)
        assert answer.status_code == (200 if house else 404)
        if house:
            house.settings |= {"quota_bytes": quota_bytes, "codec": codec}
            self._same_settings(house, answer.json())

    def _same_settings(self, house: House, document: dict[str, Any]) -> None:
        assert {field: document[field] for field in house.settings} == house.settings

    @rule(who=WHO_GOES)
    def delete_tenant(self, who: str) -> None:
        house = self.houses.pop(who, None)
        assert self.home.admin("DELETE", self.path(who)).status_code == (204 if house else 404)
        if house:
            self.book.drop(house.number)
            for token in (house.token, *house.tokens.values()):
                assert self.home.ask(token, "GET", "/v1/stats").status_code == UNAUTHENTICATED

    @rule(who=WHO)
    def make_token(self, who: str) -> None:
        answer = self.home.admin("POST", f"{self.path(who)}/tokens")
        house = self.houses.get(who)
        assert answer.status_code == (200 if house else 404)
        if house:
            house.tokens[answer.json()["id"]] = answer.json()["token"]
            assert self.home.ask(answer.json()["token"], "GET", "/v1/stats").json()["tenant"] == self.name(who)

    @precondition(lambda self: any(house.tokens for house in self.houses.values()))
    @rule(data=st.data())
    def revoke_token(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from([who for who, house in self.houses.items() if house.tokens]))
        house = self.houses[who]
        token_id, token = house.tokens.popitem()
        assert self.home.admin("DELETE", f"{self.path(who)}/tokens/{token_id}").status_code == 204
        assert self.home.ask(token, "GET", "/v1/stats").status_code == UNAUTHENTICATED
        listed = self.home.admin("GET", f"{self.path(who)}/tokens").json()["tokens"]
        assert {each["id"] for each in listed} >= set(house.tokens)
        assert len(listed) == 1 + len(house.tokens)

    @rule(who=WHO, which=WHICH)
    def register(self, who: str, which: int) -> None:
        if (house := self.houses.get(who)) is None:
            return
        is_new = LAYOUTS[which] not in house.layouts
        answer = self.home.ask(house.token, "PUT", f"/v1/layouts/{LAYOUTS[which].hex()}", json=DOCUMENTS[which])
        assert answer.status_code == (201 if is_new else 200)
        house.layouts.add(LAYOUTS[which])

    @rule(who=WHO_GOES, which=WHICH)
    def delete_layout(self, who: str, which: int) -> None:
        if (house := self.houses.get(who)) is None:
            return
        there = LAYOUTS[which] in house.layouts
        answer = self.home.ask(house.token, "DELETE", f"/v1/layouts/{LAYOUTS[which].hex()}")
        assert answer.status_code == (204 if there else 404)
        house.layouts.discard(LAYOUTS[which])
        house.asked.pop(LAYOUTS[which], None)
        self.book.drop(house.number, LAYOUTS[which])
