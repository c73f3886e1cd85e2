"""What can be wrong with a layout, a record or a request, one class each.

    KvcairnError
    ├── LayoutError          a layout document breaks a rule; `rule` names it
    ├── StrategyError        a strategy is unknown, or impossible with a layout
    ├── CodecError           an encoding is unknown, or its bytes do not decode
    ├── BadMac               a record's keyed MAC is wrong: whoever made it has not the key
    └── RecordError          a record cannot be trusted; `reason` is the word for it on the wire
        ├── TruncatedRecord  fewer bytes than the header promises (framing)
        ├── TrailingBytes    more bytes than the header promises (framing)
        ├── BadMagic         not a record at all (framing)
        ├── BadKind  BadCodec  BadFlags  BadSize  BadFrame
        ├── BadPosition  BadParent
        ├── WrongLayout  WrongKey
        └── BadChecksum

None of these is worth a retry with the same bytes.
"""

from typing import ClassVar, Literal

Reason = Literal[
    "checksum",
    "kind",
    "codec",
    "flags",
    "size",
    "position",
    "parent",
    "conflict",
    "layout",
    "key",
    "quota",
    "full",
    "framing",
]
"""Why a record was not stored: the fixed list of the wire page."""


class KvcairnError(Exception):
    """The root of every error that kvcairn raises on purpose."""


class LayoutError(KvcairnError):
    """A layout document breaks `rule`; the message says which value does and what would be right."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class StrategyError(KvcairnError):
    """The strategy is unknown, malformed, or cannot work with this layout."""


class CodecError(KvcairnError):
    """A payload cannot be encoded or decoded as asked."""


class BadMac(KvcairnError):
    """A record is whole, and yet not one that a holder of the key has made for this place (mac.py).

    No RecordError: a service cannot find it, and has no word for it.
    """


class RecordError(KvcairnError):
    """The record is not what it must be; `reason` is the word a service answers with."""

    reason: ClassVar[Reason] = "framing"


class TruncatedRecord(RecordError):
    """The bytes end before the record does."""


class TrailingBytes(RecordError):
    """Bytes follow where the record should have ended."""


class BadMagic(RecordError):
    """The bytes do not start with the magic of a record."""


class BadKind(RecordError):
    """The kind is none of history, state and window, or the layout has no payload for it."""

    reason = "kind"


class BadCodec(RecordError):
    """The codec number is unknown."""

    reason = "codec"


class BadFlags(RecordError):
    """A flag is set that is unknown, or not allowed here."""

    reason = "flags"


class BadSize(RecordError):
    """A length contradicts the layout, the codec or a limit."""

    reason = "size"


class BadFrame(RecordError):
    """The payload is no single zstd frame of the content size and window that the record may have."""

    reason = "codec"


class BadPosition(RecordError):
    """The position is not one at which a record of this layout can stand."""

    reason = "position"


class BadParent(RecordError):
    """The parent contradicts the position."""

    reason = "parent"


class WrongLayout(RecordError):
    """The record belongs to another layout than the one it is checked against."""

    reason = "layout"


class WrongKey(RecordError):
    """The record's kind, key or position is not the one that was asked for."""

    reason = "key"


class BadChecksum(RecordError):
    """The bytes are not those that the writer hashed."""

    reason = "checksum"
