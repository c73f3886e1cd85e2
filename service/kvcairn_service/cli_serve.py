"""`kvcairn serve`: the service in the foreground."""

import contextlib
import gc
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvcairn_service.app import create_app
from kvcairn_service.cli_output import fail
from kvcairn_service.errors import SettingsError
from kvcairn_service.logs import configure_logs
from kvcairn_service.server import listening, run
from kvcairn_service.settings import Settings, load_settings
from kvcairn_storage.errors import StorageError

DATA = "The data directory; made if it is not there. One service holds it at a time."
HOST = "Address to listen on; loopback unless an admin token is set. 'none' listens on the Unix socket alone."
CAPACITY = "What records may take, such as 200GiB; the file may need a quarter more. Default: half of the free space."
CONFIG = "TOML file; its keys are the KVCAIRN_* variables in lower case, without KVCAIRN_."
TLS_CERT = "PEM file with a certificate and its intermediates: the TCP port speaks TLS. Read again when it changes."
TLS_CLIENT_CA = (
    "PEM file: only clients with a certificate of one of these CAs get in. Tokens are asked for all the same."
)
AUDIT_LOG = "File for one JSON line for each admin action; without one, they go to the log."
OPEN_TO = "While open: another host name or address that may be bound and named in Host; may be repeated. At your risk."

_log = logging.getLogger("kvcairn.start")


def serve_command(  # noqa: PLR0913, PLR0917 - one parameter is one flag
    data: Annotated[Path | None, typer.Option(help=DATA, show_default="KVCAIRN_DATA")] = None,
    host: Annotated[str | None, typer.Option(help=HOST, show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="7420")] = None,
    uds: Annotated[Path | None, typer.Option(help="Path of a Unix socket to listen on as well.")] = None,
    capacity: Annotated[str | None, typer.Option(help=CAPACITY)] = None,
    config: Annotated[Path | None, typer.Option(help=CONFIG)] = None,
    open_to: Annotated[list[str] | None, typer.Option(help=OPEN_TO)] = None,
    tls_cert: Annotated[Path | None, typer.Option(help=TLS_CERT)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the certificate's key, not encrypted.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help=TLS_CLIENT_CA)] = None,
    audit_log: Annotated[Path | None, typer.Option(help=AUDIT_LOG)] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
    log_format: Annotated[str | None, typer.Option(help="plain or json.", show_default="plain")] = None,
) -> None:
    """Run the service.

    Without an admin token it is open, and listens on loopback and Unix sockets only. With one
    (KVCAIRN_ADMIN_TOKEN or KVCAIRN_ADMIN_TOKEN_FILE), every request but the probes needs a token.

    Examples:

        kvcairn serve --data /var/lib/kvcairn --capacity 200GiB

        kvcairn serve --data ./data --uds /run/kvcairn.sock --host none

        KVCAIRN_ADMIN_TOKEN_FILE=/run/secrets/admin kvcairn serve --data /data --host 0.0.0.0

        KVCAIRN_ADMIN_TOKEN_FILE=/run/secrets/admin kvcairn serve --data /data --host 0.0.0.0 \\
            --tls-cert /run/secrets/tls.crt --tls-key /run/secrets/tls.key
    """
    flags = {
        "data": data, "host": host, "port": port, "uds": uds, "capacity": capacity, "config": config,
        "open_to": open_to or None, "tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca,
        "audit_log": audit_log, "log_level": log_level, "log_format": log_format,
    }  # fmt: skip
    try:
        serve(load_settings(flags))
    except (SettingsError, StorageError) as error:
        fail(str(error), status=2)


@contextlib.contextmanager
def _kept_from_collection() -> Iterator[None]:
    """Leave what is made inside the block to no garbage collection: the index of a large store lives as long as this.

    A collection that looks through a million records stops every request for a second or more, to find nothing.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def serve(settings: Settings) -> None:
    """Open the store, bind, serve until a signal; SettingsError or StorageError if it cannot start.

    The store comes first: a second service on the same directory learns who holds it, not that a port is taken.
    """
    configure_logs(settings)
    if settings.sends_tokens_in_clear:
        _log.warning("no TLS: tokens and records travel to %s in clear; give --tls-cert and --tls-key", settings.host)
    # Whoever rotates a log at this moment must not end a start; once it serves, this reads files again (server.py).
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with _kept_from_collection():
        app = create_app(settings)
    try:
        with listening(settings) as sockets:
            run(app, settings, sockets)
    finally:
        app.state.service.store.close()
