"""What can be asked of a service in JSON: lookup, touch, exists, report, statistics."""

from collections.abc import Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import TypeVar

from pydantic import BaseModel

from kvcairn_client.control import Control
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import BadAnswer, Refused
from kvcairn_client.records import Lookup, Ref
from kvcairn_client.registry import Registry
from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import (
    ExistsAnswer,
    LookupAnswer,
    PrefixRequest,
    RecordRef,
    RecordsRequest,
    ReportAnswer,
    ReportRequest,
    TenantStats,
    TouchAnswer,
)

A = TypeVar("A", bound=BaseModel)


class Questions:
    """Each verb is one request or, beyond the service's keys_per_request, a few. Thread-safe."""

    def __init__(self, control: Control, registry: Registry) -> None:
        self._control = control
        self._registry = registry

    def lookup(self, layout: Layout, block_keys: Sequence[bytes], deadline: Deadline) -> Lookup:
        """As `Client.lookup`."""
        keys = block_keys[: self._registry.limits(deadline).keys_per_request]
        asked = _prefix(layout, keys)
        answer = self._ask("/v1/prefixes:lookup", LookupAnswer, layout, asked, deadline)
        return read_lookup(answer, layout, blocks=len(keys))

    def touch_blocks(self, layout: Layout, block_keys: Sequence[bytes], deadline: Deadline) -> int:
        """Count a use of the blocks of a prefix; returns how many are there."""
        if not block_keys:
            return 0
        keys = block_keys[: self._registry.limits(deadline).keys_per_request]
        asked = _prefix(layout, keys)
        return self._ask("/v1/prefixes:touch", TouchAnswer, layout, asked, deadline).touched

    def touch_records(self, layout: Layout, refs: Sequence[Ref], deadline: Deadline) -> int:
        """Count a use of records by name; returns how many are there."""
        asked = self._requests(layout, refs, deadline)
        answers = (self._ask("/v1/prefixes:touch", TouchAnswer, layout, part, deadline) for part in asked)
        return sum(answer.touched for answer in answers)

    def exists(self, layout: Layout, refs: Sequence[Ref], deadline: Deadline) -> list[bool]:
        """As `Client.exists`."""
        present: list[bool] = []
        for part in self._requests(layout, refs, deadline):
            answer = self._ask("/v1/records:exists", ExistsAnswer, layout, part, deadline)
            if len(answer.present) != len(part.records):
                raise BadAnswer(f"asked for {len(part.records)} records, the answer is about {len(answer.present)}")
            present += answer.present
        return present

    def report(self, layout: Layout, ref: Ref, deadline: Deadline) -> bool:
        """As `Client.report`."""
        asked = ReportRequest(layout=layout.fingerprint.hex(), kind=ref.kind.label, key=ref.key.hex())
        return self._ask("/v1/records:report", ReportAnswer, layout, asked, deadline).quarantined

    def remove(self, layout: Layout, ref: Ref, deadline: Deadline) -> bool:
        """Delete one record, so that another can take its place; whether it was there."""
        path = f"/v1/records/{layout.fingerprint.hex()}/{ref.kind.label}/{ref.key.hex()}"
        try:
            self._control.call("DELETE", path, deadline)
        except Refused as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def stats(self, deadline: Deadline) -> TenantStats:
        """As `Client.stats`."""
        return self._control.ask("GET", "/v1/stats", TenantStats, deadline)

    def _ask(self, path: str, answer: type[A], layout: Layout, asked: BaseModel, deadline: Deadline) -> A:
        call = partial(self._control.ask, "POST", path, answer, deadline, content=asked)
        return self._registry.with_layout(layout, deadline, call)

    def _requests(self, layout: Layout, refs: Sequence[Ref], deadline: Deadline) -> Iterator[RecordsRequest]:
        step = self._registry.limits(deadline).keys_per_request
        for start in range(0, len(refs), step):
            records = [RecordRef(kind=ref.kind.label, key=ref.key.hex()) for ref in refs[start : start + step]]
            yield RecordsRequest(layout=layout.fingerprint.hex(), records=records)


def _prefix(layout: Layout, keys: Sequence[bytes]) -> PrefixRequest:
    """The request for these keys, whose lengths the caller has checked; validating a long prompt's takes a while."""
    return PrefixRequest.model_construct(layout=layout.fingerprint.hex(), block_keys=[key.hex() for key in keys])


def read_lookup(answer: LookupAnswer, layout: Layout, *, blocks: int) -> Lookup:
    """A lookup's answer, checked against the question: a run longer than the prompt would be a plan into nowhere."""
    hit_tokens = answer.history_blocks * layout.block_tokens
    if not 0 <= answer.history_blocks <= blocks or answer.hit_tokens != hit_tokens:
        raise BadAnswer(
            f"asked for {blocks} blocks of {layout.block_tokens} tokens, the answer claims a run of "
            f"{answer.history_blocks} blocks and {answer.hit_tokens} tokens"
        )
    states = (p for p in answer.state_tokens if 0 < p <= hit_tokens and p % layout.block_tokens == 0)
    return Lookup(
        history_blocks=answer.history_blocks,
        hit_tokens=hit_tokens,
        state_tokens=tuple(sorted(set(states), reverse=True)),
        strategy=answer.strategy,
        codec=answer.codec,
    )
