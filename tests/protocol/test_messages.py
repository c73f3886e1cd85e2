"""The messages of the REST API: what a request may not say, and what an answer may say beyond what we know."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from kvcairn_protocol import messages
from kvcairn_protocol.strategy import Anchored, Periodic

HEX = "0123456789abcdef" * 4
REQUESTS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (messages.PrefixRequest, {"layout": HEX, "block_keys": [HEX, HEX]}),
    (messages.RecordsRequest, {"layout": HEX, "records": [{"kind": "history", "key": HEX}]}),
    (messages.ReportRequest, {"layout": HEX, "kind": "state", "key": HEX}),
    (messages.PinRequest, {"layout": HEX, "block_keys": [HEX], "ttl_seconds": 60.0, "name": "prompt"}),
    (messages.TenantSettings, {
        "strategy": {"kind": "zero"}, "codec": "raw", "quota_bytes": 1, "ttl_seconds": 0.5, "pin_quota_bytes": 0,
        "encrypt": True,
    }),
]  # fmt: skip
ANSWERS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (messages.LookupAnswer, {
        "history_blocks": 2, "hit_tokens": 1024, "state_tokens": [1024, 512],
        "strategy": {"kind": "periodic", "every_tokens": 4096}, "codec": "auto",
    }),
    (messages.StoreAnswer, {
        "stored": 1, "present": 0, "rejected": [{"index": 1, "key": None, "reason": "framing"}],
    }),
    (messages.ExistsAnswer, {"present": [True, False]}),
    (messages.TouchAnswer, {"touched": 3}),
    (messages.ReportAnswer, {"quarantined": False}),
    (messages.TokenCreated, {"id": "a", "token": "b"}),
    (messages.Tenant, {
        "name": "default", "strategy": {"kind": "anchored"}, "codec": "auto", "quota_bytes": None, "ttl_seconds": None,
        "pin_quota_bytes": None, "encrypt": False,
    }),
    (messages.Pins, {
        "pins": [{
            "id": HEX[:32], "name": None, "layout": HEX, "history_blocks": 2, "pinned_tokens": 1024,
            "state_tokens": [1024, 512], "records": 4, "present_records": 3, "charged_bytes": 16384, "created": 1.5,
            "expires": 2.5,
        }],
        "pinned_bytes": 16384, "pin_quota_bytes": 20480,
    }),
    (messages.ServiceInfo, {
        "name": "kvcairn", "version": "0.1.0", "api": 1, "generation": "g", "open": True, "features": [],
        "tenant_id": "t",
        "limits": {
            "layouts_per_tenant": 256, "layout_bytes": 1, "keys_per_request": 1, "record_bytes": 1, "body_bytes": 1,
            "pins_per_tenant": 256, "pin_seconds": 60,
        },
    }),
    (messages.Problem, {"type": "about:blank", "title": "Gone", "status": 404, "detail": "x", "request_id": None}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "document"), [*REQUESTS, *ANSWERS])
def test_a_message_reads_and_writes_the_json_of_the_wire_page(model: type[BaseModel], document: dict[str, Any]) -> None:
    assert json.loads(model.model_validate_json(json.dumps(document)).model_dump_json()) == document


@pytest.mark.parametrize(("model", "document"), REQUESTS)
def test_a_request_with_an_unknown_field_is_refused_by_its_name(
    model: type[BaseModel], document: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match="colour"):
        model.model_validate_json(json.dumps(document | {"colour": "red"}))


def test_a_record_reference_with_an_unknown_field_is_refused() -> None:
    records = [{"kind": "history", "key": HEX, "position": 8}]
    with pytest.raises(ValidationError, match="position"):
        messages.RecordsRequest.model_validate_json(json.dumps({"layout": HEX, "records": records}))


@pytest.mark.parametrize(("model", "document"), ANSWERS)
def test_an_answer_of_a_newer_service_is_read(model: type[BaseModel], document: dict[str, Any]) -> None:
    assert model.model_validate(document | {"colour": "red"}) == model.model_validate(document)


@pytest.mark.parametrize(("model", "document"), REQUESTS[:3])
def test_every_field_of_a_request_is_required(model: type[BaseModel], document: dict[str, Any]) -> None:
    for field in document:
        with pytest.raises(ValidationError, match=field):
            model.model_validate({name: value for name, value in document.items() if name != field})


@pytest.mark.parametrize(
    "wrong", ["", HEX[:-1], HEX + "0", HEX.upper(), HEX[:-1] + "g", HEX + "\n", " " + HEX, 1, None]
)
def test_a_key_is_64_lower_case_hex_digits(wrong: Any) -> None:
    for document in ({"layout": wrong, "block_keys": []}, {"layout": HEX, "block_keys": [HEX, wrong]}):
        with pytest.raises(ValidationError):
            messages.PrefixRequest.model_validate_json(json.dumps(document))


@pytest.mark.parametrize("wrong", ["History", "", 1, None, "carry"])
def test_a_kind_is_one_of_three_words(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        messages.ReportRequest.model_validate_json(json.dumps({"layout": HEX, "kind": wrong, "key": HEX}))


@pytest.mark.parametrize("wrong", [
    {"quota_bytes": 0}, {"quota_bytes": -1}, {"quota_bytes": 1.5}, {"quota_bytes": "1"}, {"quota_bytes": True},
    {"ttl_seconds": 0}, {"ttl_seconds": -1}, {"ttl_seconds": "1"}, {"ttl_seconds": float("inf")},
    {"ttl_seconds": float("nan")}, {"codec": "lz4"}, {"codec": None}, {"strategy": "full"}, {"strategy": None},
    {"strategy": {"kind": "periodic"}},
])  # fmt: skip
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        messages.TenantSettings.model_validate_json(json.dumps(wrong))


def test_settings_left_out_take_their_defaults() -> None:
    found = messages.TenantSettings.model_validate_json("{}")
    assert (found.strategy, found.codec, found.quota_bytes, found.ttl_seconds) == (Anchored(), "auto", None, None)


def test_a_strategy_is_read_as_its_own_class() -> None:
    document = {"strategy": {"kind": "periodic", "every_tokens": 4096}}
    assert messages.TenantSettings.model_validate(document).strategy == Periodic(every_tokens=4096)


@pytest.mark.parametrize("name", ["a", "default", "team-1", "0.x_y", "a" * 63])
def test_a_tenant_may_be_called(name: str) -> None:
    assert messages.Tenant(name=name).name == name


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a/b", "a b", "ä", "a" * 64, "a\n"])
def test_a_tenant_may_not_be_called(name: str) -> None:
    with pytest.raises(ValidationError):
        messages.Tenant(name=name)
