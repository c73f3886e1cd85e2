"""What a browser may do with an answer: an ASGI wrapper that adds the headers which forbid all but reading it.

No answer of this service ever carries a CORS header, so that no other site's page may read one; these stop what needs
no leave: guessing another type, running what it finds, embedding it, and keeping it.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
STYLED = {"content-security-policy": HEADERS["content-security-policy"] + "; style-src 'unsafe-inline'"}
"""For the one page that has a style sheet in it (docs_page.py)."""


class Shield:
    """Wraps one application; a header that a route has set itself stays."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, shielded if scope["type"] == "http" else send)
