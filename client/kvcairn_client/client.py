"""The client of one kvcairn service: lookup, fetch, store, pins, statistics."""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvcairn_client.address import parse_address
from kvcairn_client.arguments import bearer, byte_targets, check_keys
from kvcairn_client.budgets import Budgets
from kvcairn_client.connect import Endpoint
from kvcairn_client.connections import Connections
from kvcairn_client.control import Control
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import ClientError, ClosedClient
from kvcairn_client.exchange import Exchanges
from kvcairn_client.fetching import Fetching
from kvcairn_client.mac_keys import MacKeys, mac_keys
from kvcairn_client.outgoing import StoreBody, added, bodies
from kvcairn_client.pinning import Pinning
from kvcairn_client.questions import Questions
from kvcairn_client.records import FetchResult, Lookup, Outgoing, Ref, Wanted
from kvcairn_client.registry import Registry
from kvcairn_client.tls import TlsFiles, tls_of
from kvcairn_client.transport import Transport
from kvcairn_protocol.codec import CodecName
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.messages import Pin, Pins, ServiceInfo, StoreAnswer, TenantStats

if TYPE_CHECKING:
    from kvcairn_client.attach import Attachment

DEFAULT_URL = "http://127.0.0.1:7420"
DEFAULT_BUDGETS = Budgets()
REPORTS_A_FETCH = 8

_log = logging.getLogger(__name__)


class Client:
    """Everything that one service can be asked.

    Raises ClientError (errors.py) where the service or the way to it is at fault, ValueError where an argument is.
    Thread-safe; not to be carried across a fork.

    url: http://HOST:PORT, https://HOST:PORT or unix:/PATH. token: the tenant's, None for an open service.
    budgets: how long each call may take.
    tls_ca, tls_cert, tls_key: PEM files for https: whom to trust (None: the system's CAs), and what to show where a
    service asks for a certificate; read again when they change. tls: a whole context instead of them.
    attach: the service's data directory, where this process is on its host and may read and write there; fetches then
    copy records straight out of it (docs/decisions/attach.md). Refused, by fetching over the network, where the
    directory holds records of several tenants, unless attach_shared says that they all trust this process. Needs lmdb.
    connections: over how many a large fetch is shared out; more than one where the network caps a single flow.
    mac_key, mac_key_file: sign what is stored and refuse what is not signed, for a service that is not trusted with it
    (docs/decisions/mac.md): 16 random bytes or more, or several keys of which the first signs; or a file with one a
    line, in hex. Without either, the file that KVCAIRN_MAC_KEY_FILE names. Layouts are then those of `mac_keys`.
    """

    def __init__(  # noqa: PLR0913 - keyword-only options, each with a default
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        budgets: Budgets = DEFAULT_BUDGETS,
        tls: ssl.SSLContext | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        attach: str | os.PathLike[str] | None = None,
        attach_shared: bool = False,
        connections: int = 1,
        mac_key: bytes | Sequence[bytes] | None = None,
        mac_key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._mac_keys = mac_keys(mac_key, mac_key_file)
        address = parse_address(url)
        headers = {"User-Agent": "kvcairn-client", **bearer(token)}
        contexts = tls_of(address, tls, TlsFiles(tls_ca, tls_cert, tls_key))
        endpoint = Endpoint(address=address, connect_seconds=budgets.connect_seconds, tls=contexts)
        self._url, self._budgets = str(address), budgets
        self._owner, self._is_closed, self._has_warned = os.getpid(), False, False
        self._control = Control(endpoint, headers)
        self._registry = Registry(self._control)
        self._questions = Questions(self._control, self._registry)
        self._pinning = Pinning(self._control, self._registry)
        self._connections = Connections(endpoint)
        exchanges = Exchanges(self._connections, authority=address.authority, prefix=address.prefix, headers=headers)
        self._transport = Transport(exchanges, stall_seconds=budgets.stall_seconds)
        self._fetching = Fetching(
            self._transport, self._registry, connections=connections, control_seconds=budgets.control_seconds
        )
        self._attachment = None if attach is None else self._attached_to(Path(attach), is_shared=attach_shared)

    @property
    def mac_keys(self) -> MacKeys:
        """What records are signed and checked with; `mac_keys.authenticated(layout)` is what to store under."""
        return self._mac_keys

    def service(self) -> ServiceInfo:
        """Name, version, limits and features of the service."""
        return self._registry.service(self._start_control())

    def register(self, layout: Layout) -> None:
        """Make a layout known to the service. Every other verb does so by itself, once a client."""
        self._registry.register(layout, self._start_control())

    @property
    def budgets(self) -> Budgets:
        """How long each call may take."""
        return self._budgets

    def lookup(self, layout: Layout, block_keys: Sequence[bytes], *, within: Deadline | None = None) -> Lookup:
        """How much of a prompt is stored. block_keys: of its complete blocks, from the first (prefix.py).

        Keys beyond the service's keys_per_request are not asked for: a longer prompt gets a shorter hit.
        within: when it must be over, where that is before control_seconds have passed.
        """
        check_keys(block_keys)
        return self._questions.lookup(layout, block_keys, self._start_control(within))

    def fetch(self, layout: Layout, wanted: Sequence[Wanted], *, within: Deadline | None = None) -> FetchResult:
        """Read records into their targets; each is verified before it counts as loaded.

        Raises only where nothing was received; what ends a transfer under way is the result's `fault`. Targets that
        are not loaded have undefined content. Records found bad are misses, and are reported to the service
        afterwards, within control_seconds of their own; those with a wrong MAC are deleted there, so that right ones
        can be stored. A payload with a MAC ends with it. ValueError where the layout is not one of the client's keys.
        within: when all of it must be over, where that is before fetch_seconds have passed.
        """
        items = byte_targets(layout, wanted)
        mac_key = self._mac_keys.of(layout, [item.kind for item in items])
        deadline = self._start(self._budgets.fetch_seconds, "fetch_seconds", within)
        if self._attachment is not None:
            return self._attachment.fetch(layout, items, deadline, mac_key=mac_key)
        return self._fetch_over_network(layout, items, deadline, mac_key=mac_key)

    def fetch_bytes(self, layout: Layout, kind: Kind, key: bytes) -> bytes | None:
        """One record's decoded payload; None where the service does not have it, or not in good order."""
        payload = bytearray(layout.payload_bytes(kind))
        result = self.fetch(layout, [Wanted(kind, key, None, memoryview(payload))])
        if result.fault is not None:
            raise result.fault
        return bytes(payload) if result.loaded[0] else None

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer:
        """Store records; returns once the service has committed them. Indices in the answer count from the first one.

        Sent as bodies within the service's limit; where one of them fails, those before it stand. May be repeated:
        what is there already counts as present. Raises a RecordError for a record that no reader would accept.
        Under a layout with a MAC, the last 32 bytes of each payload are made here, whatever the caller's are.
        """
        mac_key = self._mac_keys.of(layout, [record.kind for record in records])
        deadline = self._start(self._budgets.store_seconds, "store_seconds")
        total = StoreAnswer(stored=0, present=0, rejected=[])
        if not records:
            return total
        self._registry.register(layout, self._within_control(deadline))
        limits = self._registry.limits(self._within_control(deadline))
        most = {"limit_bytes": limits.body_bytes, "limit_records": limits.keys_per_request}
        for body in bodies(layout, records, codec, **most, mac_key=mac_key):
            call = partial(self._store_body, layout, body, deadline)
            total = added(total, self._registry.with_layout(layout, deadline, call), first=body.first)
        return total

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int:
        """Count a use of blocks and of records that were served from elsewhere; returns how many of them are stored."""
        check_keys(block_keys)
        check_keys(ref.key for ref in refs)
        deadline = self._start_control()
        blocks = self._questions.touch_blocks(layout, block_keys, deadline)
        return blocks + self._questions.touch_records(layout, refs, deadline)

    def exists(self, layout: Layout, refs: Sequence[Ref]) -> list[bool]:
        """Whether each record is there, in the order asked. It may be gone a moment later: only a fetch can tell."""
        check_keys(ref.key for ref in refs)
        return self._questions.exists(layout, refs, self._start_control())

    def report(self, layout: Layout, ref: Ref) -> bool:
        """Tell the service that a record is bad; returns whether it found so, too, and took it out."""
        check_keys([ref.key])
        return self._questions.report(layout, ref, self._start_control())

    def pin(self, layout: Layout, block_keys: Sequence[bytes], *, ttl_seconds: float, name: str | None = None) -> Pin:
        """Keep what is stored of a prefix from eviction for `ttl_seconds`: its longest run, and the states it needs.

        The answer says how much that is. Under the same name, or without one for the same keys, it replaces the pin
        that was there: so pin again before it expires. Raises Refused (404) where nothing of it is stored, Refused
        (413) for what can never fit into the tenant's pins, ServiceBusy (507) for what does not fit now.
        """
        check_keys(block_keys)
        deadline = self._start_control()
        return self._pinning.pin(layout, block_keys, ttl_seconds=ttl_seconds, name=name, deadline=deadline)

    def pins(self) -> Pins:
        """The tenant's pins, and how much they may take."""
        return self._pinning.pins(self._start_control())

    def unpin(self, pin: Pin) -> bool:
        """Let a pin's records go, like any others, from now on; False where the pin was gone already."""
        return self._pinning.unpin(pin, self._start_control())

    def stats(self) -> TenantStats:
        """The caller's tenant: what it stores, how it is used."""
        return self._questions.stats(self._start_control())

    def close(self) -> None:
        """Close every connection. Calls under way may fail; harmless when repeated."""
        if self._attachment is not None:
            self._attachment.close()
        self._is_closed = True
        self._control.close()
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._url}{' closed' if self._is_closed else ''}>"

    def _start(self, seconds: float, budget: str, within: Deadline | None = None) -> Deadline:
        if self._is_closed:
            raise ClosedClient("the client is closed")
        if os.getpid() != self._owner:
            raise ClosedClient(f"the client was made in process {self._owner}; make another one in this process")
        return within.within(seconds, budget=budget) if within else Deadline(seconds, budget=budget)

    def _start_control(self, within: Deadline | None = None) -> Deadline:
        return self._start(self._budgets.control_seconds, "control_seconds", within)

    def _within_control(self, deadline: Deadline) -> Deadline:
        return deadline.within(self._budgets.control_seconds, budget="control_seconds")

    def _attached_to(self, directory: Path, *, is_shared: bool) -> "Attachment":
        try:
            from kvcairn_client.attach import Attachment  # noqa: PLC0415 - the client needs lmdb for this alone
        except ModuleNotFoundError as error:
            missing = f"attach needs {error.name}, which is not installed: pip install 'kvcairn[attach]'"
            raise ModuleNotFoundError(missing, name=error.name) from error
        return Attachment(
            directory,
            is_shared=is_shared,
            ask=lambda deadline: self._registry.service(self._within_control(deadline)),
            touch=lambda layout, refs: self._questions.touch_records(layout, refs, self._start_control()),
            over_network=self._fetch_over_network,
        )

    def _fetch_over_network(
        self, layout: Layout, items: Sequence[Wanted], deadline: Deadline, *, mac_key: bytes | None
    ) -> FetchResult:
        fetched = self._fetching.fetch(layout, items, deadline, mac_key=mac_key)
        self._note_forged(fetched.forged)
        self._report_bad(fetched.bad, partial(self._questions.report, layout), deadline)
        self._report_bad(fetched.forged, partial(self._questions.remove, layout), deadline)
        return fetched.result

    def _store_body(self, layout: Layout, body: StoreBody, deadline: Deadline) -> StoreAnswer:
        """Store one body; once more where the service turns out to have forgotten the layout."""
        answer = self._transport.store(body, deadline)
        if any(rejected.reason == "layout" for rejected in answer.rejected):
            self._registry.forget(layout)
            self._registry.register(layout, self._within_control(deadline))
            answer = self._transport.store(body, deadline)
        return answer

    def _note_forged(self, forged: Sequence[Ref]) -> None:
        """One warning a client: what a store that lies may cause must not fill the log."""
        if forged:
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            first = f"{forged[0].kind.label} {forged[0].key.hex()}"
            _log.log(level, "%d records of %s have a wrong MAC, such as %s; not used", len(forged), self._url, first)

    def _report_bad(self, bad: Sequence[Ref], report: Callable[[Ref, Deadline], object], fetching: Deadline) -> None:
        """Best effort: a fetch that went wrong already must not fail, or cost much more, for the sake of a report."""
        if not bad:
            return
        try:
            deadline = fetching.afterwards(self._budgets.control_seconds, budget="control_seconds")
            for ref in bad[:REPORTS_A_FETCH]:
                report(ref, deadline)
        except ClientError as error:
            _log.info("records that were found bad could not be reported: %s", error)
