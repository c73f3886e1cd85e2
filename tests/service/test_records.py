"""Storing, fetching and naming records over HTTP."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import zstandard

from service_caller import Caller
from service_samples import (
    HISTORY,
    RECORDS,
    STATE,
    WINDOW,
    chain,
    chain_records,
    fingerprint,
    layout_document,
    missing,
    payload_of,
    record,
    split,
)


@pytest.fixture
def prepared(caller):
    document = layout_document()
    caller.register(document)
    return document, chain(document, 5)


def test_a_fetch_returns_what_was_stored_byte_for_byte_in_request_order(caller, prepared):
    document, keys = prepared
    records = chain_records(document, keys)
    states = chain_records(document, keys, kind=STATE)
    windows = chain_records(document, keys, kind=WINDOW)
    assert caller.store(b"".join(records + states + windows)).json() == {"stored": 15, "present": 0, "rejected": []}
    asked = [("window", keys[4]), ("history", keys[1]), ("state", keys[3]), ("history", keys[0])]
    answer = caller.fetch(document, *asked)
    assert answer.headers["content-type"] == RECORDS
    assert answer.content == windows[4] + records[1] + states[3] + records[0]
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_what_is_missing_comes_as_a_header_that_says_so(caller, prepared):
    document, keys = prepared
    records = chain_records(document, keys)
    caller.store(records[1])
    asked = [("history", keys[0]), ("history", keys[1]), ("state", keys[1])]
    expected = missing(document, HISTORY, keys[0]) + records[1] + missing(document, STATE, keys[1])
    assert caller.fetch(document, *asked).content == expected


def test_a_fetch_of_nothing_is_empty(caller, prepared):
    assert caller.fetch(prepared[0]).content == b""


def test_the_same_record_twice_in_a_fetch_comes_twice(caller, prepared):
    document, keys = prepared
    (first,) = chain_records(document, keys[:1])
    caller.store(first)
    assert caller.fetch(document, *[("history", keys[0])] * 3).content == first * 3


def test_storing_again_changes_nothing(caller, prepared):
    document, keys = prepared
    body = b"".join(chain_records(document, keys))
    assert caller.store(body).json()["stored"] == 5
    assert caller.store(body).json() == {"stored": 0, "present": 5, "rejected": []}
    assert caller.store(body + body).json() == {"stored": 0, "present": 10, "rejected": []}


def test_the_first_writer_of_a_key_wins(caller, prepared):
    document, keys = prepared
    first = record(document, HISTORY, keys[0], position=8, payload=b"a" * 32)
    second = record(document, HISTORY, keys[0], position=8, payload=b"b" * 32)
    caller.store(first)
    assert caller.store(second).json()["present"] == 1
    assert caller.fetch(document, ("history", keys[0])).content == first


def test_a_bad_record_does_not_fail_its_neighbours(caller, prepared):
    document, keys = prepared
    records = chain_records(document, keys)
    spoiled = records[2][:-1] + bytes([records[2][-1] ^ 1])
    answer = caller.store(records[0] + records[1] + spoiled + records[3]).json()
    assert answer["stored"] == 3
    assert answer["rejected"] == [{"index": 2, "key": keys[2].hex(), "reason": "checksum"}]


def test_octet_stream_is_taken_as_well(caller, prepared):
    document, keys = prepared
    assert caller.store(chain_records(document, keys)[0], "application/octet-stream").status_code == 200


def test_a_chunked_body_is_taken_whatever_its_pieces(caller, prepared):
    document, keys = prepared
    body = b"".join(chain_records(document, keys))
    pieces = (body[at : at + 7] for at in range(0, len(body), 7))
    assert caller.store(pieces).json()["stored"] == 5


def test_a_child_must_stand_one_block_behind_a_parent_that_is_there(caller, prepared):
    document, keys = prepared
    first, *_ = chain_records(document, keys)
    payload = payload_of(document, HISTORY, keys[1])
    astray = record(document, HISTORY, keys[1], position=24, parent=keys[0][:16], payload=payload)
    answer = caller.store(first + astray).json()
    assert answer["stored"] == 1
    assert answer["rejected"] == [{"index": 1, "key": keys[1].hex(), "reason": "parent"}]


def test_a_child_may_come_before_its_parent(caller, prepared):
    document, keys = prepared
    records = chain_records(document, keys)
    for each in reversed(records):
        assert caller.store(each).json()["stored"] == 1
    assert caller.lookup(document, keys).json()["history_blocks"] == 5


def test_another_place_for_a_known_key_is_a_conflict(caller, prepared):
    document, keys = prepared
    payload = payload_of(document, HISTORY, keys[0])
    caller.store(chain_records(document, keys)[0])
    moved = record(document, HISTORY, keys[0], position=16, parent=b"x" * 16, payload=payload)
    assert caller.store(moved).json()["rejected"] == [{"index": 0, "key": keys[0].hex(), "reason": "conflict"}]


def test_a_compressed_record_comes_back_as_it_was_sent(caller, prepared):
    document, keys = prepared
    raw = bytes(32)
    frame = zstandard.ZstdCompressor().compress(raw)
    packed = record(document, HISTORY, keys[0], position=8, payload=frame, codec=1, raw_bytes=32)
    assert len(frame) < 32
    assert caller.store(packed).json()["stored"] == 1
    assert caller.fetch(document, ("history", keys[0])).content == packed
    assert caller.http.get(caller.path(document, "history", keys[0])).content == packed


def test_an_unchained_layout_keeps_objects_under_any_key(caller):
    document = layout_document(chained=False)
    caller.register(document)
    key = hashlib.sha256(b"page 17").digest()
    page = record(document, HISTORY, key, position=0, payload=b"p" * 32)
    assert caller.store(page).json()["stored"] == 1
    assert caller.exists(document, ("history", key), ("state", key)) == [True, False]
    assert caller.fetch(document, ("history", key)).content == page


def test_many_small_records_come_back_in_order(caller):
    document = layout_document(block_tokens=8)
    caller.register(document)
    keys = chain(document, 1500)
    records = chain_records(document, keys)
    assert caller.store(b"".join(records)).json()["stored"] == 1500
    answer = caller.fetch(document, *[("history", key) for key in reversed(keys)])
    assert split(answer.content) == records[::-1]


def test_large_records_come_back_in_order(caller):
    document = layout_document(history_bytes=3 << 20)
    caller.register(document)
    keys = chain(document, 12)
    records = chain_records(document, keys)
    assert caller.store(b"".join(records)).json()["stored"] == 12
    answer = caller.fetch(document, *[("history", key) for key in keys])
    assert answer.content == b"".join(records)


def test_a_record_of_64_mib_is_stored_and_fetched(caller):
    document = layout_document(history_bytes=64 << 20)
    caller.register(document)
    (key,) = chain(document, 1)
    (whole,) = chain_records(document, [key])
    assert caller.store(whole).json()["stored"] == 1
    assert caller.fetch(document, ("history", key)).content == whole
    caller.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")


def test_a_fetch_is_a_use_of_what_it_sent_and_of_nothing_else(caller, prepared):
    document, keys = prepared
    caller.store(b"".join(chain_records(document, keys)))
    caller.fetch(document, ("history", keys[0]), ("history", keys[1]), ("state", keys[1]))
    kinds = [
        each for each in caller.http.get("/v1/stats").json()["kinds"] if each["layout"] == fingerprint(document).hex()
    ]
    assert [(each["kind"], each["uses"], each["reused_records"]) for each in kinds] == [("history", 2, 2)]


class TestOneRecord:
    """The record's own address."""

    def test_put_then_get_head_and_delete(self, caller, prepared):
        document, keys = prepared
        path, (whole,) = caller.path(document, "state", keys[0]), chain_records(document, keys[:1], kind=STATE)
        headers = {"content-type": RECORDS}
        assert caller.http.get(path).status_code == 404
        assert caller.http.head(path).status_code == 404
        assert caller.http.put(path, content=whole, headers=headers).status_code == 201
        assert caller.http.put(path, content=whole, headers=headers).status_code == 200
        assert caller.http.get(path).content == whole
        assert caller.http.head(path).headers["content-length"] == str(len(whole))
        assert caller.http.delete(path).status_code == 204
        assert caller.http.delete(path).status_code == 404
        assert caller.http.get(path).status_code == 404

    def test_a_path_that_names_another_record_is_refused_and_nothing_is_stored(self, caller, prepared):
        document, keys = prepared
        (whole,) = chain_records(document, keys[:1], kind=STATE)
        headers = {"content-type": RECORDS}
        for path in (caller.path(document, "state", keys[1]), caller.path(document, "window", keys[0])):
            assert caller.http.put(path, content=whole, headers=headers).status_code == 422
        assert caller.exists(document, ("state", keys[0]), ("state", keys[1])) == [False, False]

    def test_trailing_bytes_and_cut_bodies_are_refused_and_nothing_is_stored(self, caller, prepared):
        document, keys = prepared
        path, (whole,) = caller.path(document, "history", keys[0]), chain_records(document, keys[:1])
        headers = {"content-type": RECORDS}
        for body in (whole + b"x", whole + whole, whole[:-1], whole[:128], whole[:127], whole[:1]):
            assert caller.http.put(path, content=body, headers=headers).status_code == 422, len(body)
        pieces = iter([whole, b"x"])
        assert caller.http.put(path, content=pieces, headers=headers).status_code == 422
        assert caller.exists(document, ("history", keys[0])) == [False]
        assert caller.http.put(path, content=b"", headers=headers).status_code == 400

    def test_an_unknown_layout_is_409_for_put_and_404_for_get(self, caller):
        document = layout_document()
        keys = chain(document, 1)
        path = caller.path(document, "history", keys[0])
        body = chain_records(document, keys)[0]
        assert caller.http.put(path, content=body, headers={"content-type": RECORDS}).status_code == 409
        assert caller.http.get(path).status_code == 404

    def test_delete_takes_that_record_alone(self, caller, prepared):
        document, keys = prepared
        caller.store(b"".join(chain_records(document, keys) + chain_records(document, keys, kind=STATE)))
        caller.http.delete(caller.path(document, "history", keys[1]))
        asked = [("history", keys[0]), ("history", keys[1]), ("state", keys[1]), ("history", keys[2])]
        assert caller.exists(document, *asked) == [True, False, True, True]


class TestReport:
    """A reader says that a record is bad."""

    def test_a_good_record_stays(self, caller, prepared):
        document, keys = prepared
        caller.store(chain_records(document, keys)[0])
        body = {"layout": fingerprint(document).hex(), "kind": "history", "key": keys[0].hex()}
        assert caller.http.post("/v1/records:report", json=body).json() == {"quarantined": False}
        assert caller.exists(document, ("history", keys[0])) == [True]


LARGE_BYTES = 1_971_328


def large_prompts(caller, count, blocks):
    """Prompts of large blocks that no two of them share: a layout, and keys and records for each prompt."""
    document = layout_document(history_bytes=LARGE_BYTES)
    caller.register(document)
    keys = [chain(document, blocks, seed=seed) for seed in range(count)]
    return document, keys, [chain_records(document, each) for each in keys]


def test_uploads_at_once_never_mix_their_bytes(open_service, caller):
    """Their buffers come from one pool and are used again, by others, while the disk is still at work."""
    document, prompts, bodies = large_prompts(caller, 4, 10)

    def upload(records):
        with open_service.http() as http:
            return Caller(http).store(b"".join(records)).json()["stored"]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(upload, bodies)) == [10] * 4
    for keys, records in zip(prompts, bodies, strict=True):
        assert caller.fetch(document, *[("history", key) for key in keys]).content == b"".join(records)
    caller.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")


def test_a_hundred_uploads_leave_no_memory_behind(open_service, caller):
    document, (keys,), (records,) = large_prompts(caller, 1, 4)
    body = b"".join(records)

    def upload_often(times):
        for _ in range(times):
            assert caller.store(body).json()["stored"] == 4
            for key in keys:
                assert caller.http.delete(f"/v1/records/{fingerprint(document).hex()}/history/{key.hex()}").is_success
        assert caller.metric("kvcairn_upload_memory_bytes") == 0
        return psutil.Process(open_service.pid).memory_full_info().uss

    before = upload_often(10)
    assert upload_often(90) - before < 3 * len(body)
    caller.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")
