"""The tokens that settings name, the admin's and the metrics token: kept as digests, read again from their files."""

import hmac
from dataclasses import dataclass
from pathlib import Path

from kvcairn_service.errors import SettingsError
from kvcairn_service.settings import Settings, is_token
from kvcairn_service.tokens import digest_of


@dataclass(slots=True)
class StandingToken:
    """One of them. file: where it is read from again; None where it was given as it is."""

    name: str
    file: Path | None
    _digest: str | None

    def is_held(self, digest: str) -> bool:
        """Whether this is the digest of the token; always the same work."""
        return hmac.compare_digest(self._digest or "", digest)

    def reload(self, *, unlike: "StandingToken") -> bool:
        """Read the file again; whether it is another token now. SettingsError, and the old one stays, where it is none.

        unlike: the other one, which must not be the same: who reads metrics would be the admin. A service that was
        closed stays closed: an empty file is no token.
        """
        if self.file is None:
            return False
        try:
            text = self.file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.name}_file: cannot read {self.file}: {error}; the old token stays") from None
        if not is_token(text):
            raise SettingsError(f"{self.name}_file: {self.file} holds no token of printable ASCII; the old one stays")
        if unlike.is_held(digest_of(text)):
            raise SettingsError(f"{self.name}_file: {self.file} holds the {unlike.name}; the old token stays")
        before, self._digest = self._digest, digest_of(text)
        return before != self._digest


@dataclass(slots=True, frozen=True)
class StandingTokens:
    """Both. To be used from the event loop alone."""

    admin: StandingToken
    metrics: StandingToken

    def reload(self, token: StandingToken) -> bool:
        """Read one of them again: see StandingToken."""
        return token.reload(unlike=self.metrics if token is self.admin else self.admin)


def standing_tokens(settings: Settings) -> StandingTokens:
    """As the settings have read them."""
    return StandingTokens(_token(settings, "admin_token"), _token(settings, "metrics_token"))


def _token(settings: Settings, name: str) -> StandingToken:
    secret = getattr(settings, name)
    return StandingToken(
        name, getattr(settings, f"{name}_file"), digest_of(secret.get_secret_value()) if secret else None
    )
