"""Every rule of a layout, broken one by one, at the limit and one beyond."""

import json
from typing import Any

import pytest

from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import Kind, parse_layout
from protocol_samples import Document, carry, document, history, layout, window

MOST = 2**53 - 1


def refused(text: str | bytes) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        parse_layout(text)
    return caught.value


def broken(**changes: Any) -> LayoutError:
    return refused(json.dumps(document(**changes)))


def broken_stream(**changes: Any) -> LayoutError:
    return broken(streams=[history(**changes), window()])


@pytest.mark.parametrize("field", sorted(document()))
def test_a_missing_field_is_named(field: str) -> None:
    made = document()
    del made[field]
    assert field in refused(json.dumps(made)).rule


@pytest.mark.parametrize(("stream", "field"), [
    (made, field) for made in (history(), window(), carry()) for field in sorted(made)
])  # fmt: skip
def test_a_missing_field_of_a_stream_is_named(stream: Document, field: str) -> None:
    del (short := dict(stream))[field]
    error = broken(streams=[history(), short])
    assert field in str(error)
    assert error.rule.startswith("streams.1")


@pytest.mark.parametrize("stream", [history(rows=1), window(tokens_per_row=1), carry(tokens_per_row=1), window(x=1)])
def test_an_unknown_field_of_a_stream_is_named(stream: Document) -> None:
    unknown = "rows" if stream["kind"] == "history" else "x" if "x" in stream else "tokens_per_row"
    assert broken(streams=[history(), stream]).rule.endswith(unknown)


def test_an_unknown_field_is_named() -> None:
    assert broken(colour="red").rule == "colour"


@pytest.mark.parametrize("field", ["version", "block_tokens", "layers", "replay_tokens"])
@pytest.mark.parametrize("wrong", [True, 8.0, "8", [8], 2**53, 10**400, -1, float("nan"), float("inf")])
def test_a_number_is_an_integer_in_range_and_nothing_like_one(field: str, wrong: Any) -> None:
    assert broken(**{field: wrong}).rule == field


@pytest.mark.parametrize("field", ["layer", "tokens_per_row"])
@pytest.mark.parametrize("wrong", [True, 4.0, "4", 2**53, -1, None])
def test_a_number_of_a_stream_is_an_integer_in_range(field: str, wrong: Any) -> None:
    assert broken_stream(**{field: wrong}).rule.endswith(field)


@pytest.mark.parametrize("wrong", [0, 2, True, 1.0, None])
def test_only_version_1_is_read(wrong: Any) -> None:
    assert broken(version=wrong).rule == "version"


@pytest.mark.parametrize(("field", "least"), [("block_tokens", 1), ("layers", 1)])
def test_a_count_starts_at_its_least(field: str, least: int) -> None:
    one_layer = [history(tokens_per_row=1)]
    assert getattr(layout(streams=one_layer, replay_tokens=0, **{field: least}), field) == least
    assert broken(streams=one_layer, replay_tokens=0, **{field: least - 1}).rule == field


def test_integers_reach_two_to_the_53_less_one_and_no_further() -> None:
    assert layout(layers=MOST, replay_tokens=MOST).layers == MOST
    assert broken(layers=MOST + 1).rule == "layers"
    assert broken(replay_tokens=MOST + 1).rule == "replay_tokens"


def test_an_integer_of_thousands_of_digits_is_refused() -> None:
    assert refused(json.dumps(document()).replace('"layers": 2', '"layers": ' + "9" * 5000)).rule == "json"


def test_a_payload_reaches_two_to_the_53_less_one_bytes_and_no_further() -> None:
    bare = document(block_tokens=1, replay_tokens=0, layers=1)
    stream = history(tokens_per_row=1, row_shape=[MOST])
    assert parse_layout(json.dumps(bare | {"streams": [stream]})).payload_bytes(Kind.HISTORY) == MOST
    assert refused(json.dumps(bare | {"streams": [stream, stream]})).rule == "row_shape"
    assert (
        refused(json.dumps(bare | {"streams": [history(tokens_per_row=1, row_shape=[MOST] * 400)]})).rule == "row_shape"
    )


@pytest.mark.parametrize("wrong", ["é", "a\n", "a\x00", "\x7f", "\ud800", "😀"])
def test_strings_are_printable_ascii(wrong: str) -> None:
    assert broken(model=wrong)
    assert broken_stream(name=wrong)
    assert broken(identity={wrong: "x"})
    assert broken(identity={"x": wrong})


def test_every_printable_character_is_allowed() -> None:
    every = "".join(map(chr, range(0x20, 0x7F)))
    assert layout(model=every, identity={every: every}).model == every


@pytest.mark.parametrize("wrong", [1, None, True, ["x"], {"x": "y"}])
def test_identity_holds_strings_and_nothing_else(wrong: Any) -> None:
    assert broken(identity={"x": wrong}).rule.startswith("identity.x")


@pytest.mark.parametrize("wrong", ["float64", "FLOAT32", "", 4, None])
def test_an_unknown_dtype_is_refused(wrong: Any) -> None:
    assert broken_stream(dtype=wrong).rule.endswith("dtype")


@pytest.mark.parametrize("wrong", ["State", "", 1, None])
def test_an_unknown_kind_of_stream_is_refused(wrong: Any) -> None:
    assert broken_stream(kind=wrong).rule == "streams.0"


@pytest.mark.parametrize("wrong", [[], [0], [-1], [1.0], [True], 4, "4", None, [2**53]])
def test_a_row_has_a_shape_of_positive_integers(wrong: Any) -> None:
    assert "row_shape" in broken_stream(row_shape=wrong).rule


@pytest.mark.parametrize("wrong", [1, 0, "true", None])
def test_chained_is_a_boolean(wrong: Any) -> None:
    assert broken(chained=wrong).rule == "chained"


def test_a_stream_lies_in_a_layer_of_the_model() -> None:
    assert broken_stream(layer=2).rule == "layer"
    assert layout(streams=[history(layer=1), window()])


def test_a_layout_has_a_stream() -> None:
    assert broken(streams=[]).rule == "streams"


def test_only_a_chained_layout_needs_history() -> None:
    assert broken(streams=[window()]).rule == "streams"
    assert layout(streams=[window()], chained=False).payload_bytes(Kind.HISTORY) == 0


@pytest.mark.parametrize("block_tokens", [1, 4, 6, 11, 13, 18])
def test_a_block_is_a_multiple_of_the_unit(block_tokens: int) -> None:
    mixed = [history(tokens_per_row=4), history(tokens_per_row=6), window()]
    assert layout(streams=mixed, block_tokens=24).unit_tokens == 12
    assert "(12)" in str(broken(streams=mixed, block_tokens=block_tokens))


def test_a_unit_that_no_block_could_hold_is_refused_without_printing_it() -> None:
    error = broken(streams=[history(tokens_per_row=MOST - odd) for odd in range(400)])
    assert error.rule == "block_tokens"
    assert len(str(error)) < 300


@pytest.mark.parametrize("wrong", [None, 1])
def test_nothing_is_replayed_where_there_is_no_state(wrong: int | None) -> None:
    assert broken(streams=[history()], replay_tokens=wrong).rule == "replay_tokens"
    assert layout(streams=[history()], replay_tokens=0)


@pytest.mark.parametrize(("once", "twice"), [
    ('"version": 1', '"version": 1, "version": 1'),
    ('"rope": "none"', '"rope": "none", "r\\u006fpe": "yarn"'),
    ('"layer": 0', '"layer": 0, "layer": 0'),
])  # fmt: skip
def test_a_name_that_stands_twice_is_refused_at_any_depth(once: str, twice: str) -> None:
    error = refused(json.dumps(document()).replace(once, twice, 1))
    assert error.rule == "duplicate key"


@pytest.mark.parametrize("text", [
    b"", b"{", b"\xff\xfe", b"{} {}", b"{'version': 1}", b"[" * 100_000, b"[" * 300 + b"]" * 300, b'{"a":' * 100_000,
    b'{"\\ud800": 1}', json.dumps(document()).encode("utf-16"), b"\xef\xbb\xbf" + json.dumps(document()).encode(),
])  # fmt: skip
def test_what_is_no_json_is_refused_as_such(text: bytes) -> None:
    assert refused(text).rule == "json"


@pytest.mark.parametrize("text", [b"null", b"[]", b'"x"', b"1", b"NaN"])
def test_what_is_no_object_is_refused_as_a_layout(text: bytes) -> None:
    assert refused(text).rule == "layout"


def test_an_error_can_be_printed_and_stays_short_whatever_the_names_are() -> None:
    names = ["x" * 100_000, "\\ud800", "\\u0000"]
    for name in names:
        text = json.dumps(document()).replace('"version"', f'"{name}": 1, "{name}": 1, "version"')
        assert len(str(refused(text)).encode()) < 300
    assert len(str(broken(**{"y" * 100_000: 1}))) < 300
