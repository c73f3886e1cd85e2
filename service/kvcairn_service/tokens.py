"""Bearer tokens of tenants: 256 random bits each, of which only the SHA-256 is kept.

A token reads `kvc_<id>_<secret>`: the id finds the document, the whole text is compared in constant time. Several may
be valid at once, so that rotation needs no pause; a revoked one is refused from the next request on.
"""

import asyncio
import hashlib
import hmac
import secrets
import time

from pydantic import BaseModel, ConfigDict

from kvcairn_protocol.messages import TokenCreated, TokenInfo
from kvcairn_service.errors import NotFound
from kvcairn_storage.store import DocumentStore

TABLE = "tokens"
PREFIX = "kvc"
NOBODYS = "0" * 64
"""A digest that no text has: what is compared where there is no such token."""


class KeptToken(BaseModel):
    """A token as it is kept. tenant: the tenant's id. sha256: of the token's text, hex."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    tenant: str
    sha256: str
    created: float


class Tokens:
    """Every token, by id. To be used from the event loop alone."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        kept = (KeptToken.model_validate_json(data) for data in documents.documents(TABLE).values())
        self._by_id = {token.id: token for token in kept}

    def find(self, text: str, digest: str) -> KeptToken | None:
        """The valid token that this text with this digest is; None for any other text, after the same work."""
        parts = text.split("_", 2)
        kept = self._by_id.get(parts[1]) if len(parts) == 3 else None
        is_same = hmac.compare_digest(kept.sha256 if kept else NOBODYS, digest)
        return kept if is_same else None

    def of(self, tenant_id: str) -> list[TokenInfo]:
        """A tenant's tokens, oldest first; never their text."""
        kept = sorted(
            (each for each in self._by_id.values() if each.tenant == tenant_id), key=lambda each: each.created
        )
        return [TokenInfo(id=each.id, created=each.created) for each in kept]

    def tenants(self) -> set[str]:
        return {each.tenant for each in self._by_id.values()}

    async def make(self, tenant_id: str) -> TokenCreated:
        """A new token, committed on return; the only time that its text is known."""
        token_id = secrets.token_hex(6)
        text = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
        kept = KeptToken(id=token_id, tenant=tenant_id, sha256=digest_of(text), created=time.time())
        await asyncio.to_thread(self._documents.put_document, TABLE, token_id, kept.model_dump_json().encode())
        self._by_id[token_id] = kept
        return TokenCreated(id=token_id, token=text)

    async def revoke(self, tenant_id: str, token_id: str) -> None:
        """Refuse the token from now on; NotFound if the tenant has none of that id."""
        kept = self._by_id.get(token_id)
        if kept is None or kept.tenant != tenant_id:
            raise NotFound(f"this tenant has no token {token_id!r}")
        await self._forget(token_id)

    async def revoke_all(self, tenant_id: str) -> None:
        for token in self.of(tenant_id):
            await self._forget(token.id)

    async def _forget(self, token_id: str) -> None:
        # Refused first, forgotten on disk second: a revoked token is never accepted again in this process.
        self._by_id.pop(token_id, None)
        await asyncio.to_thread(self._documents.delete_document, TABLE, token_id)


def digest_of(text: str) -> str:
    """What is kept of a token, and compared: equal digests take as long to compare as different ones."""
    return hashlib.sha256(text.encode()).hexdigest()
