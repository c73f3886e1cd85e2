"""For whoever writes a store: the contract that each must keep, and what tests of one need. Needs no pytest.

class TestMyStore(RecordStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = MyStore(tmp_path)
        yield store
        store.close()
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvcairn_protocol.layout import Kind
from kvcairn_protocol.record import HEADER_BYTES
from kvcairn_storage.errors import StoreClosed
from kvcairn_storage.faulty import FaultyStore
from kvcairn_storage.samples import LAYOUT, SECONDS, ManualClock, make_chain, make_put, make_record, make_state
from kvcairn_storage.store import Bytes, DocumentStore, Put, RecordKey, RecordStore

__all__ = [
    "LAYOUT",
    "SECONDS",
    "DocumentStoreContract",
    "FaultyStore",
    "ManualClock",
    "RecordStoreContract",
    "make_chain",
    "make_put",
    "make_record",
    "make_state",
]


@dataclass(frozen=True)
class _Sample:
    puts: list[Put]

    @property
    def keys(self) -> list[RecordKey]:
        return [put.key for put in self.puts]


def _sample(count: int = 3) -> _Sample:
    keys = [bytes([index + 1]) * 32 for index in range(count)]
    return _Sample([make_put(record, now=float(index)) for index, record in enumerate(make_chain(keys))])


class RecordStoreContract:
    """What every RecordStore does. A subclass gives a `store` fixture: an empty store, closed by whoever made it."""

    def test_a_miss_is_none(self, store: RecordStore) -> None:
        assert store.get(_sample().keys[0]) is None
        assert list(store.scan()) == []

    def test_what_was_written_comes_back_byte_for_byte(self, store: RecordStore) -> None:
        sample = _sample()
        store.write(sample.puts).result(SECONDS)
        assert [store.get(key) for key in sample.keys] == [b"".join(put.data) for put in sample.puts]
        assert dict(store.scan()) == {put.key: put.entry for put in sample.puts}

    def test_parts_of_any_bytes_type_are_joined_in_order(self, store: RecordStore) -> None:
        (put,) = _sample(1).puts
        whole = b"".join(put.data)
        parts: list[Bytes] = [bytearray(whole[:5]), memoryview(whole)[5:HEADER_BYTES], whole[HEADER_BYTES:], b""]
        store.write([put._replace(data=parts)]).result(SECONDS)
        assert store.get(put.key) == whole

    def test_every_part_of_the_key_tells_records_apart(self, store: RecordStore) -> None:
        (put,) = _sample(1).puts
        key = put.key
        others = [
            key._replace(tenant="other"),
            key._replace(layout=bytes(32)),
            key._replace(kind=Kind.STATE),
            key._replace(key=b"k" * 32),
        ]
        store.write([put]).result(SECONDS)
        assert [store.get(other) for other in others] == [None] * 4

    def test_a_put_replaces(self, store: RecordStore) -> None:
        (put,) = _sample(1).puts
        store.write([put]).result(SECONDS)
        store.write([put._replace(data=[b"longer than it was before"])]).result(SECONDS)
        assert store.get(put.key) == b"longer than it was before"

    def test_deletes_come_before_puts_and_may_name_what_is_not_there(self, store: RecordStore) -> None:
        first, second, third = _sample().puts
        store.write([first, second]).result(SECONDS)
        store.write([second, third], [first.key, second.key, third.key]).result(SECONDS)
        assert {key for key, _ in store.scan()} == {second.key, third.key}
        assert store.get(first.key) is None

    def test_what_the_caller_passed_in_is_not_kept_nor_changed(self, store: RecordStore) -> None:
        (put,) = _sample(1).puts
        data = bytearray(b"".join(put.data))
        before = bytes(data)
        store.write([put._replace(data=[data])]).result(SECONDS)
        data[:] = bytes(len(data))
        put.entry.uses = 77
        assert store.get(put.key) == before
        assert [entry.uses for _, entry in store.scan()] == [0]

    def test_a_use_is_remembered_and_skipped_for_what_is_gone(self, store: RecordStore) -> None:
        first, second, _ = _sample().puts
        store.write([first]).result(SECONDS)
        store.note_use({first.key: (5e9, 3), second.key: (6e9, 4)}).result(SECONDS)
        assert [(key, entry.last_used, entry.uses) for key, entry in store.scan()] == [(first.key, 5e9, 3)]

    def test_views_show_what_a_copy_would_hold(self, store: RecordStore) -> None:
        first, second, missing = _sample().puts
        store.write([first, second]).result(SECONDS)
        with store.views(iter([second.key, missing.key, first.key])) as views:
            shown = [None if view is None else bytes(view) for view in views]
        assert shown == [b"".join(second.data), None, b"".join(first.data)]

    def test_a_view_stays_right_while_its_record_is_replaced_and_deleted(self, store: RecordStore) -> None:
        put, other, another = _sample().puts
        store.write([put]).result(SECONDS)
        with store.views([put.key]) as (view,):
            store.write([put._replace(data=other.data)]).result(SECONDS)
            store.write([other, another], [put.key]).result(SECONDS)
            assert bytes(view or b"") == b"".join(put.data)

    def test_a_sound_store_has_no_faults(self, store: RecordStore) -> None:
        store.write(_sample(40).puts).result(SECONDS)
        assert store.check_integrity() == []

    def test_a_bad_record_and_a_wrong_entry_are_found_by_name(self, store: RecordStore) -> None:
        bad, wrong, good = _sample().puts
        broken = bytearray(b"".join(bad.data))
        broken[-1] ^= 1
        wrong.entry.position += 128
        store.write([bad._replace(data=[broken]), wrong, good]).result(SECONDS)
        faults = store.check_integrity()
        assert len(faults) == 2
        assert "checksum" in faults[0]
        assert bad.key.key.hex() in faults[0]
        assert "position is 384 in the entry, 256 in the record" in faults[1]

    def test_many_threads_write_and_read_at_once(self, store: RecordStore) -> None:
        puts = _sample(48).puts

        def work(mine: list[Put]) -> None:
            for put in mine:
                store.write([put]).result(SECONDS)
                assert store.get(put.key) == b"".join(put.data)

        threads = [_Worker(work, puts[start::6]) for start in range(6)]
        assert [thread.outcome() for thread in threads] == [None] * 6
        assert {key for key, _ in store.scan()} == {put.key for put in puts}

    def test_after_close_everything_is_refused_and_closing_again_is_fine(self, store: RecordStore) -> None:
        (put,) = _sample(1).puts
        store.close()
        store.close()
        assert isinstance(store.write([put]).exception(SECONDS), StoreClosed)
        calls = (
            lambda: store.get(put.key),
            lambda: store.views([put.key]).__enter__(),
            lambda: list(store.scan()),
            lambda: store.note_use({put.key: (5e9, 3)}).result(SECONDS),
            store.check_integrity,
        )
        assert [type(_raised(call)) for call in calls] == [StoreClosed] * len(calls)


class DocumentStoreContract:
    """What every DocumentStore does. A subclass gives a `documents` fixture: an empty store."""

    def test_a_missing_document_is_none(self, documents: DocumentStore) -> None:
        assert documents.get_document("tenants", "a") is None
        assert documents.documents("tenants") == {}
        assert not documents.delete_document("tenants", "a")

    def test_documents_are_kept_by_table_and_name(self, documents: DocumentStore) -> None:
        documents.put_document("tenants", "a", b"1")
        documents.put_document("tenants", "b", b"2")
        documents.put_document("tenant", "s", b"3")
        documents.put_document("tenants", "a", b"4")
        assert documents.documents("tenants") == {"a": b"4", "b": b"2"}
        assert documents.get_document("tenant", "s") == b"3"

    def test_a_deleted_document_is_gone(self, documents: DocumentStore) -> None:
        documents.put_document("tokens", "x", b"1")
        assert documents.delete_document("tokens", "x")
        assert documents.documents("tokens") == {}


class _Worker(threading.Thread):
    """A thread whose exception is its outcome."""

    def __init__(self, work: Callable[[list[Put]], None], mine: list[Put]) -> None:
        super().__init__(daemon=True)
        self._work, self._mine = work, mine
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        self._error = _raised(lambda: self._work(self._mine))

    def outcome(self) -> BaseException | None:
        self.join(SECONDS)
        return TimeoutError() if self.is_alive() else self._error


def _raised(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None
