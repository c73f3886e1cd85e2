"""An in-memory service with the client's verbs: real records, encoded and verified, in a dict."""

from collections.abc import Sequence

from kvcairn_client.errors import ServiceUnreachable
from kvcairn_client.records import FetchResult, Lookup, Outgoing, Ref, Wanted
from kvcairn_protocol.codec import CodecName, decode_into, encode
from kvcairn_protocol.layout import Kind, Layout
from kvcairn_protocol.messages import StoreAnswer
from kvcairn_protocol.record import HEADER_BYTES, encode_record, verify_record
from kvcairn_protocol.strategy import Anchored, Full, Periodic, Zero

LARGEST = 64 << 20


class MemoryService:
    """Takes and gives what the real one does, and fails on demand.

    lost: records that vanish between a lookup and a fetch. cut_after: records that a fetch sends before it breaks off.
    What does not arrive leaves garbage in its target, as a transfer that failed its checksum does.
    """

    def __init__(self, strategy: Full | Periodic | Zero | Anchored | None = None, codec: CodecName = "auto") -> None:
        self.strategy, self.codec = strategy or Anchored(), codec
        self.records: dict[tuple[Kind, bytes], bytes] = {}
        self.lost: set[tuple[Kind, bytes]] = set()
        self.cut_after: int | None = None
        self.lookups: list[int] = []
        self.fetches = 0
        self.fetched: list[Ref] = []
        self.touched: list[Ref] = []
        self.offered: list[Outgoing] = []

    def lookup(self, layout: Layout, block_keys: Sequence[bytes]) -> Lookup:
        self.lookups.append(len(block_keys))
        found = [(Kind.HISTORY, key) in self.records for key in block_keys]
        run = found.index(False) if False in found else len(found)
        step = layout.block_tokens
        states = [(i + 1) * step for i, key in enumerate(block_keys[:run]) if (Kind.STATE, key) in self.records]
        return Lookup(
            history_blocks=run, hit_tokens=run * step, state_tokens=tuple(reversed(states)),
            strategy=self.strategy, codec=self.codec,
        )  # fmt: skip

    def fetch(self, layout: Layout, wanted: Sequence[Wanted]) -> FetchResult:
        self.fetches += 1
        for record in wanted:
            record.target[:] = b"\xaa" * len(record.target)
        sent = wanted if self.cut_after is None else wanted[: self.cut_after]
        loaded = [self._fetch_one(layout, record) for record in sent]
        loaded += [False] * (len(wanted) - len(sent))
        fault = ServiceUnreachable("the connection broke") if len(sent) < len(wanted) else None
        received = sum(len(record.target) for record in sent)
        return FetchResult(loaded=loaded, bytes_received=received, fault=fault)

    def _fetch_one(self, layout: Layout, wanted: Wanted) -> bool:
        record = self.records.get((wanted.kind, wanted.key))
        if record is None or (wanted.kind, wanted.key) in self.lost:
            return False
        header = verify_record(record, layout, max_raw_bytes=LARGEST)
        assert header.position == wanted.position
        decode_into(wanted.target, header.codec, record[HEADER_BYTES:], layout.segments(wanted.kind))
        self.fetched.append(Ref(wanted.kind, wanted.key))
        return True

    def store(self, layout: Layout, records: Sequence[Outgoing], *, codec: CodecName = "auto") -> StoreAnswer:
        self.offered.extend(records)
        for record in records:
            encoded = encode(record.payload, codec, layout.segments(record.kind))
            header, payload = encode_record(
                layout, record.kind, key=record.key, position=record.position, parent=record.parent, payload=encoded
            )
            self.records[record.kind, record.key] = header + bytes(payload)
        return StoreAnswer(stored=len(records), present=0, rejected=[])

    def touch(self, layout: Layout, *, block_keys: Sequence[bytes] = (), refs: Sequence[Ref] = ()) -> int:  # noqa: ARG002
        self.touched.extend(refs)
        return sum((ref.kind, ref.key) in self.records for ref in refs)

    def keys(self, kind: Kind) -> set[bytes]:
        """Keys of the stored records of a kind."""
        return {key for found, key in self.records if found is kind}
