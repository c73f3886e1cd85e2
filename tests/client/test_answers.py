"""What an answer means, whatever it is: one of this package's errors or a checked value, nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import client_samples as samples
from kvcairn_client import errors
from kvcairn_client.answers import error_of
from kvcairn_client.client import Client
from kvcairn_client.control import read_as
from kvcairn_client.faults import answer, instead, problem
from kvcairn_client.questions import read_lookup
from kvcairn_client.testing import FakeService
from kvcairn_protocol.layout import Kind
from kvcairn_protocol.messages import (
    ExistsAnswer,
    LookupAnswer,
    Problem,
    ReportAnswer,
    ServiceInfo,
    StoreAnswer,
    TenantStats,
    TouchAnswer,
)

LAYOUT = samples.layout()
MODELS = [ExistsAnswer, LookupAnswer, ReportAnswer, ServiceInfo, StoreAnswer, TenantStats, TouchAnswer]

EXPECTED = {
    **dict.fromkeys((400, 404, 405, 413, 415, 422, 418), errors.Refused),
    **dict.fromkeys((401, 403), errors.Unauthorized),
    409: errors.LayoutUnknown,
    **dict.fromkeys((429, 503, 507), errors.ServiceBusy),
    **dict.fromkeys((500, 501, 502, 504, 599), errors.ServiceFailed),
    **dict.fromkeys((100, 301, 302, 304, 600, 999), errors.BadAnswer),
}


@pytest.mark.parametrize("status", EXPECTED)
def test_each_status_has_its_error(status: int) -> None:
    assert type(error_of(status, b"", retry_after=None)) is EXPECTED[status]


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success_is_no_error(status: int) -> None:
    assert error_of(status, b"", retry_after=None) is None


@given(st.integers(100, 999), st.binary(max_size=200), st.none() | st.text(max_size=12))
def test_no_answer_breaks_the_reading(status: int, body: bytes, retry_after: str | None) -> None:
    failure = error_of(status, body, retry_after=retry_after)
    assert (failure is None) == (200 <= status < 300)
    assert failure is None or str(status) in str(failure)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        ("0", 0.0),
        (None, None),
        ("-1", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("9" * 400, None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_nothing(value: str | None, expected: float | None) -> None:
    failure = error_of(503, b"", retry_after=value)
    assert isinstance(failure, errors.ServiceBusy)
    assert failure.retry_after_seconds == expected


def test_a_problem_s_own_words_come_along() -> None:
    sent = Problem(type="about:blank", title="Unprocessable", status=422, detail="streams: at least one")
    failure = error_of(422, sent.model_dump_json().encode(), retry_after=None)
    assert isinstance(failure, errors.Refused)
    assert failure.problem == sent
    assert "streams: at least one" in str(failure)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
answers = st.dictionaries(
    st.sampled_from(
        ["history_blocks", "hit_tokens", "state_tokens", "strategy", "codec", "present", "stored", "rejected", "limits"]
    ),
    json_values,
)


@pytest.mark.parametrize("model", MODELS)
@given(st.binary(max_size=100) | (answers | json_values).map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_is_a_bad_answer(model: type[BaseModel], body: bytes) -> None:
    try:
        found = read_as(model, body)
    except errors.BadAnswer:
        return
    assert isinstance(found, model)


@given(st.integers(), st.integers(), st.lists(st.integers(), max_size=6), st.integers(0, 20))
def test_a_lookup_never_claims_more_than_was_asked(blocks: int, tokens: int, states: list[int], asked: int) -> None:
    body = {"history_blocks": blocks, "hit_tokens": tokens, "state_tokens": states, "strategy": {"kind": "zero"}}
    try:
        found = read_lookup(read_as(LookupAnswer, json.dumps({**body, "codec": "raw"}).encode()), LAYOUT, blocks=asked)
    except errors.BadAnswer:
        assert not 0 <= blocks <= asked or tokens != blocks * samples.BLOCK_TOKENS
        return
    assert found.hit_tokens == blocks * samples.BLOCK_TOKENS <= asked * samples.BLOCK_TOKENS
    assert list(found.state_tokens) == sorted(set(found.state_tokens), reverse=True)
    assert all(0 < state <= found.hit_tokens and state % samples.BLOCK_TOKENS == 0 for state in found.state_tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api": 2}, "version 1 of the API"),
        ({"limits": {"keys_per_request": 0}}, "limits"),
        ({"limits": {"body_bytes": -1}}, "limits"),
    ],
)
def test_a_service_that_this_client_cannot_use_is_a_bad_answer(
    client: Client, service: FakeService, changes: dict[str, object], message: str
) -> None:
    info = client.service().model_dump()
    limits = {**info["limits"], **changes.get("limits", {})}  # type: ignore[dict-item]
    body = json.dumps({**info, **changes, "limits": limits}).encode()
    service.faults["/v1/service"] = instead(answer(200, "application/json", body))
    with pytest.raises(errors.BadAnswer, match=message):
        client.service()


def test_limits_are_asked_for_again_after_a_request_was_too_large(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 4)
    client.store(LAYOUT, records)
    record_bytes = 128 + LAYOUT.payload_bytes(Kind.HISTORY)
    service.shelf.limits = service.shelf.limits.model_copy(update={"body_bytes": record_bytes})
    service.faults["/v1/records:store"] = instead(problem(413))
    with pytest.raises(errors.Refused):
        client.store(LAYOUT, records)
    del service.faults["/v1/records:store"]
    service.seen.clear()
    assert client.store(LAYOUT, records, codec="raw").present == 4
    assert service.seen == ["GET /v1/service"] + ["POST /v1/records:store"] * 4
