"""A data directory with a prefix of one-byte records among as many others as wanted, written past the service.

Written in the order of the keys, so that LMDB appends: at random, each record would dirty a page of its own. The keys
of a prefix lie as far apart as hashes do, and each prefix was stored at a moment of its own.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.prefixes import Prefix
from examples.service import running_service
from kvcairn_client.client import Client
from kvcairn_protocol.layout import HistoryStream, Kind, Layout
from kvcairn_protocol.record import Header
from kvcairn_storage.lmdb import LmdbReader, LmdbStore, map_bytes_for
from kvcairn_storage.store import Entry, Put, RecordKey

CAPACITY_BYTES = 8 << 30
CAPACITY = ("--capacity", f"{CAPACITY_BYTES >> 30}GiB")
KEY_BYTES, BLOCK_TOKENS = 32, 512
GROUP_RECORDS = 16_384


def one_byte_layout() -> Layout:
    """The smallest records there are: a block of 512 tokens is one byte."""
    stream = HistoryStream(
        kind="history", name="h", layer=0, tokens_per_row=BLOCK_TOKENS, row_shape=(1,), dtype="uint8"
    )
    return Layout(
        version=1, model="one-byte", chained=True, block_tokens=BLOCK_TOKENS, layers=1, replay_tokens=0,
        streams=(stream,), identity={},
    )  # fmt: skip


def fill(data: Path, *, blocks: int, others: int) -> list[bytes]:
    """Make `data` the directory of a stopped service that holds so many records; the keys of a prefix of `blocks`."""
    tenant = _introduce(data)
    total = blocks + others
    keys, chains = _sorted_keys(total), total // blocks
    store = LmdbStore(data, map_bytes=map_bytes_for(CAPACITY_BYTES))
    written: Future[None] | None = None
    puts = _puts(tenant, keys, chains)
    while group := list(islice(puts, GROUP_RECORDS)):
        previous, written = written, store.write(group)
        if previous is not None:
            previous.result()
    store.close()
    return keys[::chains][:blocks]


def _introduce(data: Path) -> str:
    """Let a service make the directory, its tenant and the layout; the tenant's id."""
    layout = one_byte_layout()
    with running_service(*CAPACITY, data=data) as service, Client(service.url) as client:
        client.store(layout, Prefix(layout, 1).records(0, 1), codec="raw")
    reader = LmdbReader(data)
    ((key, _),) = reader.scan()
    reader.close()
    return key.tenant


def _sorted_keys(count: int) -> list[bytes]:
    drawn = np.random.default_rng(0).bytes(count * KEY_BYTES)
    return sorted(drawn[at : at + KEY_BYTES] for at in range(0, len(drawn), KEY_BYTES))


def _puts(tenant: str, keys: list[bytes], chains: int) -> Iterator[Put]:
    """Every record, in the order of the keys: every `chains`-th key continues the same chain."""
    fingerprint = one_byte_layout().fingerprint
    for at, key in enumerate(keys):
        position = (at // chains + 1) * BLOCK_TOKENS
        parent = keys[at - chains][:16] if at >= chains else bytes(16)
        header = Header(
            kind=Kind.HISTORY, position=position, raw_bytes=1, stored_bytes=1, fingerprint=fingerprint, key=key,
            parent=parent,
        )  # fmt: skip
        stored = float(at % chains)
        entry = Entry(position, parent, BLOCK_TOKENS, raw_bytes=1, stored_bytes=1, created=stored, last_used=stored)
        yield Put(RecordKey(tenant, fingerprint, Kind.HISTORY, key), entry, [header.seal(b"\0"), b"\0"])
