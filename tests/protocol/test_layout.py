"""Offsets, sizes, canonical JSON and fingerprint, against plain arithmetic, json and hashlib."""

import hashlib
import json
import math
from itertools import accumulate

import pytest
from hypothesis import given

from kvcairn_protocol.layout import Kind, Layout, Segment, parse_layout
from protocol_samples import ITEM_BYTES, Document, document, documents, history, layout, window


def row_bytes(stream: Document) -> int:
    return math.prod(stream["row_shape"]) * ITEM_BYTES[stream["dtype"]]


def history_sizes(made: Document) -> list[int]:
    found = [s for s in made["streams"] if s["kind"] == "history"]
    return [made["block_tokens"] // s["tokens_per_row"] * row_bytes(s) for s in found]


def state_sizes(made: Document) -> list[int]:
    ordered = [s for kind in ("window", "carry") for s in made["streams"] if s["kind"] == kind]
    return [s["rows"] * row_bytes(s) for s in ordered]


def window_sizes(made: Document) -> list[int]:
    rows = [(s, max(0, made["block_tokens"] - s["rows"])) for s in made["streams"] if s["kind"] == "window"]
    return [count * row_bytes(s) for s, count in rows if count]


SIZES = {Kind.HISTORY: history_sizes, Kind.STATE: state_sizes, Kind.WINDOW: window_sizes}


@given(documents())
def test_rows_stand_back_to_back_in_stream_order(made: Document) -> None:
    found = parse_layout(json.dumps(made))
    for kind, sizes_of in SIZES.items():
        sizes = sizes_of(made)
        assert [s.size_bytes for s in found.segments(kind)] == sizes
        assert [s.offset for s in found.segments(kind)] == [0, *accumulate(sizes)][: len(sizes)]
        assert found.payload_bytes(kind) == sum(sizes)


def test_windows_come_before_carries_whatever_the_order_of_the_document() -> None:
    made = document()
    made["streams"].reverse()
    assert [s.stream.kind for s in layout(streams=made["streams"]).segments(Kind.STATE)] == ["window", "carry"]


@given(documents())
def test_the_unit_is_the_lcm_of_the_history_ratios(made: Document) -> None:
    unit = parse_layout(json.dumps(made)).unit_tokens
    ratios = [s["tokens_per_row"] for s in made["streams"] if s["kind"] == "history"]
    assert all(unit % ratio == 0 for ratio in ratios)
    assert not any(all(smaller % ratio == 0 for ratio in ratios) for smaller in range(1, unit))


@given(documents())
def test_canonical_json_is_sorted_compact_ascii_and_hashes_to_the_fingerprint(made: Document) -> None:
    spelled = json.dumps(made, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    found = parse_layout(json.dumps(made, indent=3))
    assert found.canonical == spelled
    assert found.fingerprint == hashlib.sha256(spelled).digest()


@given(documents())
def test_reading_the_canonical_json_gives_the_same_layout(made: Document) -> None:
    found = parse_layout(json.dumps(made))
    again = parse_layout(found.canonical)
    assert again == found
    assert hash(again) == hash(found)


@given(documents())
def test_what_was_asked_of_a_layout_does_not_change_its_document(made: Document) -> None:
    used, fresh = parse_layout(json.dumps(made)), parse_layout(json.dumps(made))
    assert used.segments(Kind.STATE) == fresh.segments(Kind.STATE)
    assert used.unit_tokens > 0
    assert used.canonical == fresh.canonical


def test_escapes_and_white_space_of_the_document_do_not_count() -> None:
    escaped = json.dumps(document()).replace('"model"', '"\\u006dodel"').replace(",", " ,\n")
    assert parse_layout(escaped).fingerprint == layout().fingerprint


HISTORY_CHANGES: list[Document] = [
    {"name": "hca"}, {"layer": 1}, {"tokens_per_row": 8}, {"row_shape": [2, 2]}, {"dtype": "int8"},
]  # fmt: skip
WINDOW_CHANGES: list[Document] = [
    {"name": "w"}, {"layer": 0}, {"rows": 4}, {"row_shape": [1, 2]}, {"dtype": "bfloat16"},
]  # fmt: skip
CHANGES: list[Document] = [
    {"model": "org/model@2"},
    {"chained": False},
    {"block_tokens": 16},
    {"layers": 3},
    {"replay_tokens": 7},
    {"replay_tokens": None},
    {"identity": {"rope": "yarn"}},
    {"identity": {}},
    {"streams": [history(), window()]},
    {"streams": [history(dtype="int8"), window(), window()]},
    *({"streams": [history(**change), window()]} for change in HISTORY_CHANGES),
    *({"streams": [history(), window(**change)]} for change in WINDOW_CHANGES),
]


def test_every_field_of_the_document_changes_the_fingerprint() -> None:
    found = {layout(**change).fingerprint for change in [{}, *CHANGES]}
    assert len(found) == len(CHANGES) + 1


def test_a_window_as_long_as_the_block_leaves_no_window_record() -> None:
    for rows, left in ((7, 4), (8, 0), (9, 0)):
        assert layout(streams=[history(), window(rows=rows)]).payload_bytes(Kind.WINDOW) == left


def test_a_layout_cannot_be_changed() -> None:
    found: Layout = layout()
    with pytest.raises(ValueError, match="frozen"):
        found.block_tokens = 16  # type: ignore[misc] # what is refused here


def test_a_segment_says_where_its_stream_lies() -> None:
    found = layout()
    assert found.segments(Kind.STATE) == (
        Segment(found.windows[0], offset=0, rows=3),
        Segment(found.carries[0], offset=12, rows=2),
    )
