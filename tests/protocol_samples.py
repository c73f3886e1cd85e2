"""Layout documents for the tests of the protocol: one small one, and hypothesis strategies that make any."""

import json
from typing import Any

from hypothesis import strategies as st

from kvcairn_protocol.layout import Layout, parse_layout

Document = dict[str, Any]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1}
TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=6)


def history(**changes: Any) -> Document:
    """A history stream: one row of 4 bytes per 4 tokens."""
    stream = {"kind": "history", "name": "csa", "layer": 0, "tokens_per_row": 4, "row_shape": [4], "dtype": "uint8"}
    return stream | changes


def window(**changes: Any) -> Document:
    """A window stream: 3 rows of 4 bytes."""
    return {"kind": "window", "name": "window", "layer": 1, "rows": 3, "row_shape": [2], "dtype": "float16"} | changes


def carry(**changes: Any) -> Document:
    """A carry stream: 2 rows of 12 bytes."""
    return {"kind": "carry", "name": "overlap", "layer": 0, "rows": 2, "row_shape": [3], "dtype": "float32"} | changes


def document(**changes: Any) -> Document:
    """A small document: blocks of 8 tokens; payloads of 8 (history), 36 (state) and 20 (window) bytes."""
    small = {
        "version": 1,
        "model": "org/model@1",
        "chained": True,
        "block_tokens": 8,
        "layers": 2,
        "replay_tokens": 6,
        "streams": [history(), window(), carry()],
        "identity": {"rope": "none"},
    }
    return small | changes


def layout(**changes: Any) -> Layout:
    """The small layout, with changes."""
    return parse_layout(json.dumps(document(**changes)))


@st.composite
def streams(draw: st.DrawFn, *, layers: int) -> Document:
    """Any stream of a model with so many layers."""
    kind = draw(st.sampled_from(["history", "window", "carry"]))
    count = {"tokens_per_row": draw(st.integers(1, 6))} if kind == "history" else {"rows": draw(st.integers(1, 9))}
    return {
        "kind": kind,
        "name": draw(TEXT),
        "layer": draw(st.integers(0, layers - 1)),
        "row_shape": draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)),
        "dtype": draw(st.sampled_from(sorted(ITEM_BYTES))),
    } | count


@st.composite
def documents(draw: st.DrawFn, *, chained: bool | None = None) -> Document:
    """Any document that obeys the rules."""
    layers = draw(st.integers(1, 3))
    chained = draw(st.booleans()) if chained is None else chained
    found = draw(st.lists(streams(layers=layers), min_size=1, max_size=5))
    if chained:
        found.append(history(tokens_per_row=draw(st.integers(1, 6))))
    has_state = any(stream["kind"] != "history" for stream in found)
    return {
        "version": 1,
        "model": draw(TEXT),
        "chained": chained,
        "block_tokens": 60 * draw(st.integers(1, 3)),
        "layers": layers,
        "replay_tokens": draw(st.none() | st.integers(1, 500)) if has_state else 0,
        "streams": found,
        "identity": draw(st.dictionaries(TEXT, TEXT, max_size=3)),
    }
