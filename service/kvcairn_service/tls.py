"""TLS of the TCP port: certificates that are read again while it serves, and handshakes that end with a word.

The loop wraps each new connection by the context's `wrap_bio`. The one here hands that to whichever context was read
last, so that certificate, key and client CA change together, between two connections, or not at all.
"""

import hashlib
import logging
import ssl
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from kvcairn_service.errors import SettingsError
from kvcairn_service.flood import Flood
from kvcairn_service.settings import Settings

_PLAIN_PROBLEM = (
    b'{"type": "urn:kvcairn:problem:bad-request", "title": "Bad Request", "status": 400, '
    b'"detail": "this port speaks TLS: ask it by https://", "request_id": null}'
)
PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_PLAIN_PROBLEM), _PLAIN_PROBLEM)
)
"""What one gets who speaks plain HTTP to the TLS port."""

HTTP_1_1 = "http/1.1"

HANDSHAKES = 256
"""How many may be under way beside as many connections as may be open, which get an answer where they are too many."""

_log = logging.getLogger("kvcairn.tls")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. cert: the service's, then its intermediates. client_ca: whose clients are let in; None for all."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)

    def content(self) -> tuple[bytes | None, ...]:
        """A digest of each file, which tells new ones from old ones; None for one that cannot be read."""
        return tuple(_digest(path) for path in self.paths)


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or newer, on these files as they are now; SettingsError names the one that is at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([HTTP_1_1])
    context.sslobject_class = Handshake
    # A ticket would let a client in for hours without another look at its certificate, which may have expired.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    _load_own(context, files)
    if files.client_ca is not None:
        _load_client_ca(context, files.client_ca)
    return context


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    for name, path in (("tls_cert", files.cert), ("tls_key", files.key)):
        _check_readable(name, path)
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_passphrase)
    except _Encrypted:
        raise SettingsError(
            f"tls_key: {files.key} is encrypted, and nobody is asked for a passphrase; give a key without one, "
            f"readable by this user alone"
        ) from None
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"tls_cert, tls_key: {files.cert} and {files.key} are no pair: {_said(error)}") from None


def _load_client_ca(context: ssl.SSLContext, path: Path) -> None:
    _check_readable("tls_client_ca", path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"tls_client_ca: {path} holds no PEM certificates: {_said(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"{name}: cannot read {path}: {error.strerror}") from None


class _Encrypted(Exception):
    """The key asks for a passphrase."""


def _refuse_passphrase() -> str:
    raise _Encrypted


def _said(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)


class Handshake(ssl.SSLObject):
    """One connection's TLS. A handshake that fails is told to the peer before the connection ends.

    The loops drop what OpenSSL has written, the alert included, when `do_handshake` raises; they send it where more is
    to come. So the error waits for the next call, which the peer's end of the connection or the loop's timeout brings.
    """

    outgoing: ssl.MemoryBIO
    owner: "ServerTls"
    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failed = error
            self.owner.note_failed(error)
            if error.reason == "HTTP_REQUEST":
                self.outgoing.read()
                self.outgoing.write(PLAIN_ANSWER)
            raise ssl.SSLWantReadError from None


class ServerTls(ssl.SSLContext):
    """The context of the listening socket. To be used from the event loop alone.

    max_connections: how many may be open or in their handshake; more are closed at once. failures: handshakes that
    came to nothing since the start.
    """

    def __new__(cls, files: TlsFiles, *, max_connections: int) -> "ServerTls":  # noqa: ARG004 - as __init__ has it
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: TlsFiles, *, max_connections: int) -> None:
        """SettingsError where the files are not what they must be."""
        self.failures = 0
        self.files = files
        self._current = server_context(files)
        self._content = files.content()
        self._max_connections = max_connections
        self._open: weakref.WeakSet[ssl.SSLObject] = weakref.WeakSet()
        self._flood = Flood()

    def reload(self) -> bool:
        """Read the files again, for connections from now on; whether they are others than before.

        SettingsError, and nothing changes, where they are bad: a pair that was half exchanged, as a rule.
        """
        content = self.files.content()
        if content == self._content:
            return False
        self._current, self._content = server_context(self.files), content
        return True

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - the signature is the standard library's
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """See SSLContext; ConnectionAbortedError where there are too many."""
        if len(self._open) >= self._max_connections:
            raise ConnectionAbortedError(f"more than {self._max_connections} TLS connections at once")
        wrapped = self._current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, Handshake)  # noqa: S101 - the context's own class
        wrapped.outgoing, wrapped.owner = outgoing, self
        self._open.add(wrapped)
        return wrapped

    def note_failed(self, error: ssl.SSLError) -> None:
        """Count a handshake that came to nothing; some are logged, all of them never."""
        self.failures += 1
        left_out = self._flood.admits(time.monotonic())
        if left_out is not None:
            more = f" ({left_out} more since the last such line)" if left_out else ""
            _log.warning("a TLS handshake failed: %s%s", _said(error), more)


def make_tls(settings: Settings) -> ServerTls | None:
    """TLS as the settings have it, None where the port speaks plain HTTP; SettingsError where its files are bad."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return ServerTls(files, max_connections=settings.max_connections + HANDSHAKES)
