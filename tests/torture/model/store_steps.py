"""Steps that store: whole prompts as an engine does, and anything else, right or wrong."""

from typing import Any

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import rule

from torture.model.book import Place, charged_bytes, eviction_faults, least_bytes
from torture.model.home import CAPACITY_BYTES
from torture.model.house import House
from torture.model.prompts import BLOCKS, FORGERIES, LAYOUTS, PROMPTS, made, place_of
from torture.model.steps import KIND, PROMPT, SPOT, WHICH, WHO, Steps

FORGED, IS_STRANGE = st.sampled_from([None] * 30 + [*FORGERIES]), st.sampled_from([False, False, True])
ITEMS = st.lists(st.tuples(KIND, SPOT, FORGED, IS_STRANGE), min_size=1, max_size=4)
RUN, WITH = st.integers(1, BLOCKS), st.sampled_from([["state"], ["state"], ["state", "window"], []])


class StoreSteps(Steps):
    """Stores, and what had to go for them."""

    def _store_prompt(self, who: str, which: int, prompt: int, blocks: int, ends: list[str]) -> None:
        """What an engine sends after a lookup: the blocks that are not there, and what stands at their end."""
        if (house := self.houses.get(who)) is None:
            return
        there, _ = self.book.run(house.number, LAYOUTS[which], PROMPTS[which][prompt])
        items = [("history", spot, None, False) for spot in range(there, blocks)]
        self._store(house, which, prompt, [*items, *((kind, blocks - 1, None, False) for kind in ends)], "a")

    engine_a = rule(who=WHO, which=WHICH, prompt=PROMPT, blocks=RUN, ends=WITH)(_store_prompt)
    engine_b = rule(who=WHO, which=WHICH, prompt=PROMPT, blocks=RUN, ends=WITH)(_store_prompt)
    engine_c = rule(who=WHO, which=WHICH, prompt=PROMPT, blocks=RUN, ends=WITH)(_store_prompt)

    @rule(who=WHO, which=WHICH, prompt=PROMPT, items=ITEMS, writer=st.sampled_from("ab"))
    def store(self, who: str, which: int, prompt: int, items: list[tuple[Any, ...]], writer: str) -> None:
        if (house := self.houses.get(who)) is not None:
            self._store(house, which, prompt, items, writer)

    @rule(who=WHO, which=WHICH, prompt=PROMPT, spot=st.integers(0, BLOCKS - 2), is_strange=st.booleans())
    def store_parent_and_child(self, who: str, which: int, prompt: int, spot: int, is_strange: bool) -> None:  # noqa: FBT001 - by name
        """A block where it belongs or not, and the one that follows it where it belongs."""
        if (house := self.houses.get(who)) is not None:
            items = [("history", spot, None, is_strange), ("history", spot + 1, None, False)]
            self._store(house, which, prompt, items, "a")

    def _store(self, house: House, which: int, prompt: int, items: list[tuple[Any, ...]], writer: str) -> None:
        """One request, or one for each record where room is short, so that the model knows for whom it was made."""
        is_tight = self._is_tight(house, which, len(items))
        for some in [[item] for item in items] if is_tight else [items] if items else []:
            self._send(house, which, prompt, some, writer)

    def _send(self, house: House, which: int, prompt: int, items: list[tuple[Any, ...]], writer: str) -> None:
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
        """No room only where it does not fit beside what may not go for it."""
        self.book.store(place, record, spot[1], spot[2])
        tenant, limit_bytes = (
            (None, CAPACITY_BYTES) if reason == "full" else (place.tenant, house.settings["quota_bytes"])
        )
        left_bytes = least_bytes(self.book, place, busy=self._busy(place), tenant=tenant)
        del self.book.records[place]
        assert left_bytes > limit_bytes, f"{reason}, though {left_bytes} of {limit_bytes} bytes are enough"

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
        gone = set(self.book.records) - set(self.existing())
        busy, limit_bytes = self._busy(place), quota_bytes if over_quota else CAPACITY_BYTES
        tenant = house.number if over_quota else None
        if not (over_quota and over_capacity):
            assert eviction_faults(self.book, gone, busy=busy, tenant=tenant, limit_bytes=limit_bytes) == []
        event(f"evicted {len(gone)} for {'quota' if over_quota else 'capacity'}")
        for each in gone:
            del self.book.records[each]
        assert self.book.charged_bytes() <= CAPACITY_BYTES
