"""The layout: the schema of every payload, and the identity of the model that made it.

Formats: docs/wire.md ("Layout"); where the parts come from: DeepSeek-V4 report §3.5.1.
A payload has no headers of its own: the streams' rows stand back to back, and their offsets follow from the layout.
"""

import hashlib
import json
import math
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvcairn_protocol.errors import LayoutError

MAX_INTEGER = 2**53 - 1
MAX_RULE_CHARACTERS = 120
"""A document may name its fields at any length; an error repeats no more of a name than this."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1}

DType = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]
KindLabel = Literal["history", "state", "window"]
Text = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Index = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class Kind(IntEnum):
    """The three kinds of record, numbered as in the record header."""

    HISTORY = 1
    STATE = 2
    WINDOW = 3

    @property
    def label(self) -> KindLabel:
        """The name in JSON and in URLs."""
        return _LABEL_BY_KIND[self]

    @classmethod
    def from_label(cls, label: str) -> "Kind":
        """The kind of that name; KeyError for any other word."""
        return _KIND_BY_LABEL[label]


_LABEL_BY_KIND: dict[Kind, KindLabel] = {Kind.HISTORY: "history", Kind.STATE: "state", Kind.WINDOW: "window"}
_KIND_BY_LABEL: dict[str, Kind] = {label: kind for kind, label in _LABEL_BY_KIND.items()}


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _Stream(_Document):
    name: Text
    layer: Index
    row_shape: Annotated[tuple[Count, ...], Field(min_length=1)]
    dtype: DType

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.item_bytes


class HistoryStream(_Stream):
    """Compressed entries of one layer: one row per `tokens_per_row` tokens, kept for ever, never changed."""

    kind: Literal["history"]
    tokens_per_row: Count


class WindowStream(_Stream):
    """One layer's sliding window: the last `rows` tokens, one row each; rows before token 0 are zeros, in front."""

    kind: Literal["window"]
    rows: Count


class CarryStream(_Stream):
    """Fixed rows that belong to one position, such as the CSA overlap rows."""

    kind: Literal["carry"]
    rows: Count


Stream = Annotated[HistoryStream | WindowStream | CarryStream, Field(discriminator="kind")]


class Segment(NamedTuple):
    """Where one stream's rows lie in a payload."""

    stream: HistoryStream | WindowStream | CarryStream
    offset: int
    rows: int

    @property
    def size_bytes(self) -> int:
        return self.rows * self.stream.row_bytes


class Layout(_Document):
    """One model's cache as bytes: immutable, hashable by its `fingerprint`.

    Build it with keyword arguments (pydantic's ValidationError for a wrong type) or read it with `parse_layout`
    (LayoutError only).
    """

    version: Annotated[int, Field(ge=1, le=1)]
    model: Text
    chained: bool
    block_tokens: Count
    layers: Count
    replay_tokens: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None
    streams: tuple[Stream, ...]
    identity: dict[Text, Text]

    @model_validator(mode="after")
    def _obey_the_rules(self) -> Self:
        if not self.streams:
            raise LayoutError("streams", "a layout has at least one stream, this one has none")
        for stream in self.streams:
            if stream.layer >= self.layers:
                raise LayoutError("layer", f"stream {stream.name!r} names layer {stream.layer} of {self.layers}")
        if self.chained and not self.history:
            raise LayoutError("streams", "a chained layout has at least one history stream, this one has none")
        if self.block_tokens % self.unit_tokens:
            raise LayoutError(
                "block_tokens",
                f"must be a multiple of the unit, the lcm of all tokens_per_row ({_shown(self.unit_tokens)}); "
                f"{self.block_tokens} is not",
            )
        for kind in Kind:
            if self.payload_bytes(kind) > MAX_INTEGER:
                raise LayoutError("row_shape", f"a payload has at most {MAX_INTEGER} bytes, {kind.label} has more")
        if not self.has_state and self.replay_tokens != 0:
            raise LayoutError("replay_tokens", "must be 0 where a layout has neither window nor carry streams")
        return self

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def history(self) -> tuple[HistoryStream, ...]:
        return tuple(s for s in self.streams if isinstance(s, HistoryStream))

    @cached_property
    def windows(self) -> tuple[WindowStream, ...]:
        return tuple(s for s in self.streams if isinstance(s, WindowStream))

    @cached_property
    def carries(self) -> tuple[CarryStream, ...]:
        return tuple(s for s in self.streams if isinstance(s, CarryStream))

    @property
    def has_state(self) -> bool:
        return bool(self.windows or self.carries)

    @cached_property
    def unit_tokens(self) -> int:
        """The lcm of all compression ratios: only at its multiples nothing is pending."""
        return math.lcm(1, *(s.tokens_per_row for s in self.history))

    @cached_property
    def canonical(self) -> bytes:
        """The document in its one spelling: sorted keys, no white space, ASCII."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the canonical document, 32 bytes."""
        return hashlib.sha256(self.canonical).digest()

    @cached_property
    def _segments(self) -> dict[Kind, tuple[Segment, ...]]:
        history = [(s, self.block_tokens // s.tokens_per_row) for s in self.history]
        state = [*((s, s.rows) for s in self.windows), *((s, s.rows) for s in self.carries)]
        window = [(s, max(0, self.block_tokens - s.rows)) for s in self.windows]
        return {
            Kind.HISTORY: _place(history),
            Kind.STATE: _place(state),
            Kind.WINDOW: _place(window),
        }

    def segments(self, kind: Kind) -> tuple[Segment, ...]:
        """Where each stream's rows lie in a payload of that kind, in stream order, without gaps."""
        return self._segments[kind]

    def payload_bytes(self, kind: Kind) -> int:
        """The length of a decoded payload; 0 where this layout has no record of that kind."""
        return self._payload_bytes[kind]

    @cached_property
    def _payload_bytes(self) -> dict[Kind, int]:
        return {kind: sum(segment.size_bytes for segment in self._segments[kind]) for kind in Kind}


def _place(streams: list[tuple[Any, int]]) -> tuple[Segment, ...]:
    placed, offset = [], 0
    for stream, rows in streams:
        if rows:
            segment = Segment(stream, offset, rows)
            placed.append(segment)
            offset += segment.size_bytes
    return tuple(placed)


def _shown(number: int) -> str:
    """The number for a message; Python refuses to print one of thousands of digits, which a document can ask for."""
    return str(number) if number <= MAX_INTEGER else f"more than {MAX_INTEGER}"


def parse_layout(document: bytes | str) -> Layout:
    """Read a layout from JSON; LayoutError names the first broken rule.

    Parsed twice on purpose: pydantic takes the last of two equal keys, which two readers could take for two layouts.
    """
    try:
        json.loads(document, object_pairs_hook=_refuse_duplicates)
        return Layout.model_validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        unnamed = "json" if first["type"] == "json_invalid" else "layout"
        where = ".".join(str(part) for part in first["loc"]) or unnamed
        raise LayoutError(where[:MAX_RULE_CHARACTERS], first["msg"]) from None
    except (ValueError, RecursionError) as error:
        raise LayoutError("json", str(error) or "nested too deeply") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise LayoutError("duplicate key", f"every name stands once, {name[:MAX_RULE_CHARACTERS]!a} stands twice")
        found[name] = value
    return found
