"""What all steps of the machine share: the model, the service, and what every step draws from."""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from service_samples import KINDS
from torture.model.book import Book, Place
from torture.model.home import Home
from torture.model.house import House
from torture.model.prompts import BLOCK_TOKENS, BLOCKS, LAYOUTS, PROMPTS

WHO = st.sampled_from(["red", "red", "green", "green", "blue"])
WHICH, PROMPT, SPOT = st.sampled_from([0, 0, 1]), st.sampled_from([0, 0, 1]), st.integers(0, BLOCKS - 1)
KIND = st.sampled_from(["history", "history", "history", "state", "state", "window"])


class Steps(RuleBasedStateMachine):
    """home: the service. restarts: how many an example may have. All of a tenant's requests go by its own token."""

    home: ClassVar[Home]
    restarts: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(dict.fromkeys(LAYOUTS, BLOCK_TOKENS))
        self.houses: dict[str, House] = {}
        self.example = self.home.next_number()
        self.restarts_left = self.restarts

    def existing(self) -> set[Place]:
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

    def name(self, who: str) -> str:
        return f"{who}-{self.example}"

    def path(self, who: str) -> str:
        return f"/v1/tenants/{self.name(who)}"
