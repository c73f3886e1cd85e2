"""The server process: its sockets, uvicorn's loop, and a shutdown that drains within a bound."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from kvcairn_service.audit import OPERATOR, Entry
from kvcairn_service.connection import Connection, connection_class
from kvcairn_service.errors import SettingsError
from kvcairn_service.lane_check import lanes_work
from kvcairn_service.reloads import Reloadable, Reloads
from kvcairn_service.settings import Settings
from kvcairn_service.state import Phase, Service
from kvcairn_service.tls import ServerTls

BACKLOG = 2048
RELOAD_TICKS = 50
"""Files are looked at every five seconds."""

PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o666


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[list[socket.socket]]:
    """The sockets to listen on, closed at the end; SettingsError if one cannot be had."""
    with contextlib.ExitStack() as open_sockets:
        sockets = []
        if settings.host is not None:
            sockets.append(open_sockets.enter_context(bind_tcp(settings.host, settings.port)))
        if settings.uds is not None:
            mode = PRIVATE_MODE if settings.is_open else PUBLIC_MODE
            sockets.append(open_sockets.enter_context(bind_unix(settings.uds, mode=mode)))
            open_sockets.callback(settings.uds.unlink, missing_ok=True)
        yield sockets


def bind_tcp(host: str, port: int) -> socket.socket:
    """A socket on the first address of `host`; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise SettingsError(f"host, port: cannot listen on {host}:{port}: {error.strerror}") from None
    sock.listen(BACKLOG)
    sock.settimeout(0)
    return sock


def bind_unix(path: Path, *, mode: int) -> socket.socket:
    """A Unix socket at `path`, never readable by more than `mode` says; a dead one in its place is removed."""
    _remove_dead_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise SettingsError(f"uds: cannot listen on {path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    sock.listen(BACKLOG)
    sock.settimeout(0)
    return sock


def _remove_dead_socket(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise SettingsError(f"uds: {path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise SettingsError(f"uds: another process listens on {path}")


def places(sockets: Sequence[socket.socket], tls: ServerTls | None) -> list[str]:
    """Where the sockets can be reached, as URLs."""
    return [_place(sock, "http" if tls is None else "https") for sock in sockets]


def _place(sock: socket.socket, scheme: str) -> str:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if sock.family == socket.AF_INET6 else name[0]
    return f"{scheme}://{host}:{name[1]}"


class Server(uvicorn.Server):
    """uvicorn's server, with one line that says where it listens, and a drain during which the probes still answer."""

    def __init__(
        self, config: uvicorn.Config, service: Service, announcement: str, *, protocol: type[Connection]
    ) -> None:
        super().__init__(config)
        self._protocol = protocol
        self._service = service
        self._announcement = announcement
        self._reloads = reloads_of(service)
        self._is_reload_asked = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._protocol.has_lanes = await lanes_work(self._protocol)
        await super().startup([])  # the application; it would give TLS to every socket, or to none
        for sock in sockets or ():
            self.servers.append(await self._listen(sock))
        print(self._announcement, flush=True)

    async def _listen(self, sock: socket.socket) -> asyncio.Server:
        loop, tls = asyncio.get_running_loop(), self._service.tls
        if tls is None or sock.family == socket.AF_UNIX:
            return await loop.create_server(self._make_protocol, sock=sock, backlog=BACKLOG)
        bound_seconds = self._service.settings.header_seconds
        return await loop.create_server(
            self._make_protocol, sock=sock, backlog=BACKLOG, ssl=tls,
            ssl_handshake_timeout=bound_seconds, ssl_shutdown_timeout=bound_seconds,
        )  # fmt: skip

    def _make_protocol(self) -> Connection:
        return self._protocol(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn's, ten times a second; reads again what changed, everything after a SIGHUP."""
        if self._is_reload_asked or counter % RELOAD_TICKS == 0:
            names = self._reloads.all() if self._is_reload_asked else self._reloads.changed()
            self._is_reload_asked = False
            for name in names:
                await self._service.audit.note(Entry(who=OPERATOR, action=f"reload.{name}", outcome="done"))
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, let those under way end within the bound, then close. A second signal ends the wait."""
        self._service.phase = Phase.DRAINING
        deadline = asyncio.get_running_loop().time() + self._service.settings.drain_seconds
        while self._service.counters.requests and not self.force_exit:
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but the signal is not raised again afterwards: an orderly end is status 0."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._is_reload_asked = True


def reloads_of(service: Service) -> Reloads:
    """What this service reads again from files: certificates, the settings' tokens, and where the audit log is."""
    parts = [
        Reloadable(token.name, (token.file,), partial(service.standing.reload, token))
        for token in (service.standing.admin, service.standing.metrics)
        if token.file is not None
    ]
    if service.tls is not None:
        parts.append(Reloadable("tls", service.tls.files.paths, service.tls.reload))
    if service.encryption.file is not None:
        parts.append(Reloadable("encryption_key", (service.encryption.file,), service.encryption.reload))
    if service.settings.audit_log is not None:
        parts.append(Reloadable("audit_log", (service.settings.audit_log,), service.audit.reopen))
    return Reloads(parts)


def announce(settings: Settings, service: Service, sockets: Sequence[socket.socket]) -> str:
    """The one line of a start: where, for whom, how much."""
    where = " and ".join(places(sockets, service.tls))
    whom = "open: every caller is tenant default and admin" if settings.is_open else "closed: callers need a token"
    gibibytes = service.store.capacity_bytes / (1 << 30)
    return f"kvcairn listening on {where} ({whom}; capacity {gibibytes:.1f} GiB in {settings.data})"


def run(app: FastAPI, settings: Settings, sockets: list[socket.socket]) -> None:
    """Serve until a signal; returns once the store is closed."""
    service: Service = app.state.service
    protocol = connection_class(header_seconds=settings.header_seconds, max_connections=settings.max_connections)
    service.crowd = protocol.crowd
    config = uvicorn.Config(
        app,
        http=protocol,
        loop="uvloop" if _has_uvloop() else "asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # Declared as whole seconds, and given to `call_later`, which takes any.
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=1,
    )
    Server(config, service, announce(settings, service, sockets), protocol=protocol).run(sockets)


def _has_uvloop() -> bool:
    return sys.implementation.name == "cpython" and sys.platform != "win32"
