"""Fetching from the data directory of a service on the same host, past its socket; all else still goes over it.

The one module of the client that knows the storage: `Client` imports it where a directory is given, and only then.
Whatever is not as it must be is fetched over the network: attaching can make a restore faster, never make it fail.
Why so, and whom it trusts: docs/decisions/attach.md.
"""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from kvcairn_client.attach_copy import Copies
from kvcairn_client.attach_lease import Ask, Lease
from kvcairn_client.attach_uses import Touch, Uses
from kvcairn_client.deadline import Deadline
from kvcairn_client.errors import ClientError
from kvcairn_client.records import FetchResult, Ref, Wanted
from kvcairn_protocol.layout import Layout
from kvcairn_storage.attached import AttachedReader, attach, detach
from kvcairn_storage.store import RecordKey

HELPERS = 1
"""Threads beside the caller's: two together reach what memory gives, on the machines that this was measured on."""

CLOSE_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Fetch(Protocol):
    """How to fetch over the network, as `Client.fetch` does; raises only where nothing was received."""

    def __call__(
        self, layout: Layout, wanted: Sequence[Wanted], deadline: Deadline, /, *, mac_key: bytes | None
    ) -> FetchResult: ...


class Attachment:
    """One client's way into a data directory. Thread-safe; in a forked child it serves nothing.

    is_shared: whether to read a directory that holds records of other tenants, too. ask: an authenticated question to
    the service. over_network: how to fetch what cannot be had here.
    """

    def __init__(self, directory: Path, *, is_shared: bool, ask: Ask, touch: Touch, over_network: Fetch) -> None:
        self._directory = attach(directory)
        self._is_shared, self._over_network = is_shared, over_network
        self._lease, self._uses = Lease(ask), Uses(touch)
        self._helper = ThreadPoolExecutor(HELPERS, thread_name_prefix="kvcairn-attach")
        self._owner, self._is_closed = os.getpid(), False
        self._is_serving: bool | None = None

    def fetch(
        self, layout: Layout, wanted: Sequence[Wanted], deadline: Deadline, *, mac_key: bytes | None = None
    ) -> FetchResult:
        """As `Client.fetch`: what is here from here, the rest over the network."""
        answers = self._read(Copies(layout, wanted, mac_key=mac_key), layout, deadline)
        self._uses.note(layout, [Ref(item.kind, item.key) for item, got in zip(wanted, answers, strict=True) if got])
        left = [index for index, got in enumerate(answers) if got is None]
        over_network = partial(self._over_network, mac_key=mac_key)
        rest = _fetch_rest(over_network, layout, [wanted[index] for index in left], deadline, is_first=not any(answers))
        loaded = [bool(got) for got in answers]
        for index, is_loaded in zip(left, rest.loaded, strict=True):
            loaded[index] = is_loaded
        mapped = sum(got or 0 for got in answers)
        return replace(rest, loaded=loaded, bytes_mapped=mapped)

    def close(self) -> None:
        """Report what was used, within a bound, and let go of the map. A second close does nothing."""
        if self._is_closed or os.getpid() != self._owner:
            return
        self._is_closed = True
        self._uses.close(CLOSE_SECONDS)
        self._helper.shutdown()
        detach(self._directory)

    def _read(self, copies: Copies, layout: Layout, deadline: Deadline) -> list[int | None]:
        """The answers of `copies`; as far as it came where something is not as it must be."""
        try:
            reader, tenant = self._open(deadline)
            copies.run(partial(_views, reader, tenant, layout), self._helper, deadline)
        except Exception as fault:
            self._note(fault)
        else:
            self._note(None)
        return copies.answers

    def _open(self, deadline: Deadline) -> tuple[AttachedReader, str]:
        """The directory that the service serves now, and the tenant that it takes this client for."""
        service = self._lease.service(deadline)
        tenant = str(service.tenant_id)
        reader = self._directory.reader(service.generation)
        others = reader.tenants() - {tenant}
        if others and not self._is_shared:
            raise ClientError(
                f"it holds records of {len(others)} other tenants, and whoever is attached could read them; "
                "attach_shared=True says that all of them trust this process"
            )
        return reader, tenant

    def _note(self, fault: Exception | None) -> None:
        """One line in the log where things change, not one a fetch."""
        was_serving, self._is_serving = self._is_serving, fault is None
        if fault is None and was_serving is False:
            _log.info("reading from %s again", self._directory.path)
        if fault is not None:
            level = logging.DEBUG if was_serving is False else logging.WARNING
            where, kind = self._directory.path, type(fault).__name__
            _log.log(level, "fetching over the network instead of from %s: %s: %s", where, kind, fault)


def _fetch_rest(
    over_network: "partial[FetchResult]", layout: Layout, rest: Sequence[Wanted], deadline: Deadline, *, is_first: bool
) -> FetchResult:
    """Raises only where nothing came from the directory either."""
    if not rest:
        return FetchResult(loaded=[])
    try:
        return over_network(layout, rest, deadline)
    except ClientError as error:
        if is_first:
            raise
        return FetchResult(loaded=[False] * len(rest), fault=error)


def _views(
    reader: AttachedReader, tenant: str, layout: Layout, wanted: Sequence[Wanted]
) -> AbstractContextManager[list[memoryview | None]]:
    return reader.views([RecordKey(tenant, layout.fingerprint, item.kind, item.key) for item in wanted])
