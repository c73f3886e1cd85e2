"""What the OpenAPI document says beyond what FastAPI sees: bodies that routes read for themselves, and problems."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kvcairn_protocol.layout import Layout
from kvcairn_protocol.messages import (
    PROBLEM_TYPE,
    RECORDS_TYPE,
    PinRequest,
    PrefixRequest,
    Problem,
    PurgeRequest,
    RecordsRequest,
    ReportRequest,
    TenantChange,
)

REF = "#/components/schemas/{model}"
BODIES: tuple[type[BaseModel], ...] = (
    Layout,
    PrefixRequest,
    PinRequest,
    RecordsRequest,
    ReportRequest,
    PurgeRequest,
    TenantChange,
    Problem,
)

BINARY = {"type": "string", "format": "binary"}


def reads(*models: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads JSON of one of these shapes."""
    refs = [{"$ref": REF.format(model=model.__name__)} for model in models]
    schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def reads_records(description: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads whole records."""
    content = {media: {"schema": BINARY} for media in (RECORDS_TYPE, "application/octet-stream")}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def sends_records(description: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers with records."""
    return {200: {"description": description, "content": {RECORDS_TYPE: {"schema": BINARY}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` for the refusals that a route is known for; 401, 403, 429 and 503 are everywhere."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    return {status: {"description": _MEANING[status], "content": content} for status in (*statuses, 401, 403, 429, 503)}


_MEANING = {
    400: "Malformed",
    401: "No valid token",
    403: "Not for this caller",
    404: "Not there",
    408: "The body came too slowly",
    409: "The layout is not registered, or what must stay would go",
    413: "Over a limit, or can never fit",
    415: "A content type that is not read here",
    422: "Breaks a rule",
    429: "Too many at once, or too many layouts",
    503: "Starting or draining",
    507: "No space now",
}


def document_of(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The function that makes the app's document: FastAPI's own, with the schemas of the bodies above added."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    return document


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, schemas = models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)
    components = made.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in schemas.get("$defs", {}).items():
        components.setdefault(name, schema)
    return made
