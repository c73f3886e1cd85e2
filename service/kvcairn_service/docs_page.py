"""The page at /docs: the API at a glance, made from the OpenAPI document; no script, nothing from elsewhere.

FastAPI's own page loads its script from a public CDN, which would then run beside an open service's administrator.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse

from kvcairn_service.browsers import STYLED

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }}
td {{ padding: .15rem 1rem .15rem 0; vertical-align: top }} code {{ white-space: nowrap }}
</style></head><body>
<h1>{title}</h1><p>{description}</p>
<p>The whole description, for tools: <a href="openapi.json">openapi.json</a>.</p>
<table>{rows}</table>
</body></html>
"""


def add_docs_page(app: FastAPI) -> None:
    """Serve the page; it is no part of the document that it shows."""

    async def show_docs(_: Request) -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()), headers=STYLED)

    app.add_route("/docs", show_docs, include_in_schema=False)


def docs_page(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document. Pure."""
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    rows = "\n".join(_rows(document["paths"]))
    return _PAGE.format(title=escape(title), description=escape(info.get("description", "")), rows=rows)


def _rows(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for path, operations in paths.items():
        for method, operation in operations.items():
            said = operation.get("description") or operation.get("summary", "")
            yield (
                f"<tr><td>{escape(method.upper())}</td><td><code>{escape(path)}</code></td><td>{escape(said)}</td></tr>"
            )
