"""Long questions, taken apart a slice at a time: thousands of keys in one go would keep everybody else waiting.

A JSON body becomes Python's own lists and strings in one quick step. What is slow is to check every key of it; that is
done for a slice of its one long list at a time, and between two slices the loop answers others.
"""

import asyncio
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from kvcairn_service.errors import Malformed, RuleBroken
from kvcairn_service.problems import describe

Model = TypeVar("Model", bound=BaseModel)
Shape = type[Model] | TypeAdapter[Model]

LONG_BYTES = 128 << 10
"""From here on a body is taken apart in slices: some 2,000 keys, a prompt of a million tokens."""

SLICE_ITEMS = 1024
LISTS = ("block_keys", "records")

MOST_FIELDS = 16
"""No document of the API has more; a message about each that is unknown would take seconds to make."""


async def parse_long(body: bytes, shape: Shape[Model]) -> Model:
    """As `parse_json`, for a body of any length; the loop is free in between."""
    document = _loaded(body)
    await asyncio.sleep(0)
    name = next((each for each in LISTS if isinstance(document, dict) and isinstance(document.get(each), list)), None)
    if name is None:
        return _checked(document, shape)
    items: list[Any] = document[name]
    whole = _checked({**document, name: items[:SLICE_ITEMS]}, shape)
    good: list[Any] = getattr(whole, name)
    for start in range(SLICE_ITEMS, len(items), SLICE_ITEMS):
        await asyncio.sleep(0)
        part = {**document, name: items[start : start + SLICE_ITEMS]}
        good += getattr(_checked(part, shape, first=start), name)
    return whole


def parse_json(body: bytes, shape: Shape[Model]) -> Model:
    """A body as `shape`. Malformed (400): no JSON. RuleBroken (422): JSON of another shape; it names the fields."""
    return _checked(_loaded(body), shape)


def _loaded(body: bytes) -> Any:
    try:
        return from_json(body, cache_strings="keys")
    except ValueError as error:
        raise _no_json(str(error)) from None


def _checked(document: Any, shape: Shape[Model], *, first: int = 0) -> Model:
    """first: which item of the whole list the document's begins with, for the message."""
    _check_fields(document)
    try:
        if isinstance(shape, TypeAdapter):
            return shape.validate_python(document)
        return shape.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        places = [{**each, "loc": _shifted(each["loc"], first)} for each in found]
        raise RuleBroken(describe(places)) from None


def _check_fields(document: Any) -> None:
    if not isinstance(document, dict):
        return
    parts = [document, *(part for name in LISTS for part in _items(document.get(name)))]
    if any(isinstance(part, dict) and len(part) > MOST_FIELDS for part in parts):
        raise RuleBroken(f"no document here has more than {MOST_FIELDS} fields")


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shifted(location: tuple[str | int, ...], first: int) -> tuple[str | int, ...]:
    return tuple(part + first if isinstance(part, int) else part for part in location)


def _no_json(what: str) -> Malformed:
    return Malformed(f"the body is no JSON: {what}")
