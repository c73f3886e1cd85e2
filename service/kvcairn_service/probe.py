"""`python -m kvcairn_service.probe`: whether the service that this environment sets up takes requests; status 0 or 1.

For health checks that no HTTP probe of the platform can make: of a container, and under mutual TLS, where the platform
has no certificate. It reads the service's own variables, and asks by the Unix socket where there is one. The standard
library alone, so that it starts in a moment; http.client, since a proxy of the environment's must not be asked.
"""

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Mapping

TIMEOUT_SECONDS = 2.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection_of(environ: Mapping[str, str]) -> http.client.HTTPConnection:
    """A connection to the service, not opened yet; ValueError where there is none that a probe could take."""
    if path := environ.get("KVCAIRN_UDS"):
        return _UnixConnection(path)
    port = int(environ.get("KVCAIRN_PORT", "7420"))
    if not environ.get("KVCAIRN_TLS_CERT"):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    if environ.get("KVCAIRN_TLS_CLIENT_CA"):
        raise ValueError("under mutual TLS a probe goes by the Unix socket: set KVCAIRN_UDS")
    # The peer is this very machine, whose name is in no certificate; nothing that is secret is sent or believed.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context)


def main() -> int:
    """0 where the service is ready; else 1, and why on stderr."""
    try:
        connection = connection_of(os.environ)
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
        connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"kvcairn: no answer: {error}", file=sys.stderr)
        return 1
    if answer.status != http.client.OK:
        print(f"kvcairn: {answer.status}: {said}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
