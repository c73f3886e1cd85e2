"""Pins as documents: what is written of each, and how it is read again. No clock, no decision."""

from pydantic import BaseModel, ConfigDict

from kvcairn_protocol.layout import Kind
from kvcairn_storage.pins import Pin, PinnedRecord
from kvcairn_storage.slot import PAGE_BYTES
from kvcairn_storage.store import DocumentStore

TABLE = "pins"
_KEY_DIGITS = 64


class KeptPin(BaseModel):
    """What a pin is, without its records. tenant: the tenant's id. created, expires: seconds since 1970."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    tenant: str
    name: str | None
    layout: str
    block_tokens: int
    history_blocks: int
    state_tokens: list[int]
    charged_bytes: int
    created: float
    expires: float

    @property
    def fingerprint(self) -> bytes:
        return bytes.fromhex(self.layout)

    @property
    def place(self) -> str:
        """The document's name."""
        return place_of(self.tenant, self.id)


def place_of(tenant_id: str, pin_id: str) -> str:
    """The name of a pin's document."""
    return f"{tenant_id}/{pin_id}"


class _Document(KeptPin):
    """The whole of it. history, states: keys as hex, one behind the other; pages: what each of these takes."""

    history: str
    states: str
    pages: list[int]


def pack_pin(kept: KeptPin, pin: Pin) -> bytes:
    """The document of a pin."""
    text = {kind: "".join(each.key.hex() for each in pin.records if each.kind is kind) for kind in Kind}
    pages = [each.charged_bytes // PAGE_BYTES for each in pin.records]
    whole = _Document(**kept.model_dump(), history=text[Kind.HISTORY], states=text[Kind.STATE], pages=pages)
    return whole.model_dump_json().encode()


def load_pins(documents: DocumentStore, *, now: float) -> list[tuple[KeptPin, Pin]]:
    """Every pin that was kept: those that have not expired come first, and of them the oldest."""
    found = [_Document.model_validate_json(data) for data in documents.documents(TABLE).values()]
    found.sort(key=lambda each: (each.expires <= now, each.created))
    return [(KeptPin(**each.model_dump()), _pin(each)) for each in found]


def _pin(document: _Document) -> Pin:
    names = [(Kind.HISTORY, key) for key in _split(document.history)]
    names += [(Kind.STATE, key) for key in _split(document.states)]
    records = tuple(
        PinnedRecord(kind, key, pages * PAGE_BYTES) for (kind, key), pages in zip(names, document.pages, strict=True)
    )
    return Pin(document.tenant, document.fingerprint, document.id, records)


def _split(digits: str) -> list[bytes]:
    return [bytes.fromhex(digits[at : at + _KEY_DIGITS]) for at in range(0, len(digits), _KEY_DIGITS)]
