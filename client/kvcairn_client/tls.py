"""TLS towards a service: whom to trust, what to show, and what its errors mean in words.

Certificates live for days where a fleet issues its own: the files are read again when they change, for the connections
made from then on.
"""

import logging
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvcairn_client.address import Address

Contexts = Callable[[], ssl.SSLContext]
"""Called for each new connection. Thread-safe; never raises."""

FilePath = str | os.PathLike[str]

_log = logging.getLogger(__name__)


class TlsFiles(NamedTuple):
    """PEM files. ca: whom to trust, None for the system's CAs. cert and key: what mutual TLS asks for."""

    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None

    @property
    def given(self) -> dict[str, Path]:
        """Those that are given, by the name of their parameter."""
        return {f"tls_{name}": Path(path) for name, path in self._asdict().items() if path is not None}


def tls_of(address: Address, context: ssl.SSLContext | None, files: TlsFiles) -> Contexts | None:
    """The contexts for an address, None for one without TLS; ValueError where the parameters contradict each other."""
    if files.given and not address.tls:
        raise ValueError(f"{', '.join(files.given)} have a meaning for https://HOST:PORT alone, not for {address}")
    if not address.tls:
        return None
    if context is None:
        return ContextOfFiles(files)
    if files.given:
        raise ValueError(
            f"tls is a whole context, and {', '.join(files.given)} would be left out; give one or the other"
        )
    return lambda: context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or newer; certificates and host names are checked. ValueError names the file that is at fault."""
    if files.key is not None and files.cert is None:
        raise ValueError("tls_key is given and tls_cert is not; a client certificate has both, or both in one file")
    for name, path in files.given.items():
        _check_readable(name, path)
    context = _trusting(files.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert is not None:
        _show(context, files.cert, files.key)
    return context


def _trusting(ca: FilePath | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"tls_ca: {ca} holds no PEM certificates: {error}") from None


def _show(context: ssl.SSLContext, cert: FilePath, key: FilePath | None) -> None:
    try:
        context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"tls_cert, tls_key: {cert} and {key or 'the key in it'} are no pair: {error}") from None


def _refuse_passphrase() -> str:
    raise ValueError("the key is encrypted, and nobody is asked for a passphrase")


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{name}: cannot read {path}: {error.strerror}") from None


class ContextOfFiles:
    """The context that files make, made again when they change. Thread-safe."""

    def __init__(self, files: TlsFiles) -> None:
        """ValueError where the files are not what they must be; later on, the context from before goes on."""
        self._files = files
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._context = client_context(files)

    def __call__(self) -> ssl.SSLContext:
        """The context for a new connection."""
        with self._lock:
            found = self._signature()
            if found != self._seen:
                self._seen = found
                self._make_again()
            return self._context

    def _make_again(self) -> None:
        try:
            self._context = client_context(self._files)
        except ValueError as error:
            _log.warning("going on with the certificates from before: %s", error)

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_signature, self._files.given.values()))


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


_MEANINGS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the service asks for a certificate of this client: give tls_cert and tls_key",
    "TLSV1_ALERT_UNKNOWN_CA": "the service does not trust the CA of this client's certificate (tls_cert)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this client's certificate (tls_cert) is no longer, or not yet, valid",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the service ended the handshake; does it ask for a certificate (tls_cert)?",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the service does not take this client's certificate (tls_cert)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the service speaks another version of TLS",
    "WRONG_VERSION_NUMBER": "what listens there speaks no TLS; is it an http:// service?",
}


def explained(error: OSError) -> str:
    """What an error of a socket means, with what would help where that is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the service's certificate is not trusted: {error.verify_message} (tls_ca names the CA to trust)"
    meaning = _MEANINGS.get(error.reason or "") if isinstance(error, ssl.SSLError) else None
    return meaning or str(error)
