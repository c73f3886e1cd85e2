"""Bad input, line by line: each is refused by a problem that names it, and nothing stored is harmed."""

import contextlib
import http.client
import json
import struct

import pytest
import zstandard

from service_samples import (
    HISTORY,
    RECORDS,
    STATE,
    chain,
    chain_records,
    fingerprint,
    layout_document,
    missing,
    payload_of,
    record,
)

JSON = {"content-type": "application/json"}
DOCUMENTED = {
    "magic": slice(0, 4), "kind": slice(4, 5), "codec": slice(5, 6), "flags": slice(6, 8), "position": slice(8, 16),
    "raw_bytes": slice(16, 24), "stored_bytes": slice(24, 32), "layout": slice(32, 64), "key": slice(64, 96),
    "parent": slice(96, 112), "checksum": slice(112, 128), "payload": slice(128, 160),
}  # fmt: skip


@pytest.fixture
def known(caller):
    """A layout with one good record, which every test here must leave as it is."""
    document = layout_document()
    caller.register(document)
    keys = chain(document, 4)
    first = chain_records(document, keys)[0]
    caller.store(first)
    yield document, keys
    assert caller.fetch(document, ("history", keys[0])).content == first
    assert caller.metric("kvcairn_upload_memory_bytes") == 0


def problem(answer, status):
    """The problem document of an answer, after checking that it is one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:kvcairn:problem:")
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


class TestRecords:
    """Every field of a record."""

    @pytest.mark.parametrize("name", DOCUMENTED)
    def test_a_flipped_bit_in_any_byte_of_any_field_is_refused(self, caller, known, name):
        """One bit of each byte; test_receive.py flips them all."""
        document, keys = known
        whole = chain_records(document, keys)[1]
        for at in range(DOCUMENTED[name].start, DOCUMENTED[name].stop):
            spoiled = bytearray(whole)
            spoiled[at] ^= 1 << (at % 8)
            answer = caller.store(bytes(spoiled)).json()
            assert (answer["stored"], answer["present"]) == (0, 0), (name, at)
            assert answer["rejected"][0]["index"] == 0
        assert caller.exists(document, ("history", keys[1])) == [False]

    @pytest.mark.parametrize(
        ("reason", "forged"),
        [
            ("kind", {"kind": 4}),
            ("kind", {"kind": 0}),
            ("codec", {"codec": 3}),
            ("flags", {"flags": 2}),
            ("flags", {"flags": 1}),
            ("size", {"payload": b"x" * 31}),
            ("size", {"payload": b"x" * 33}),
            ("size", {"payload": b"x" * 33, "raw_bytes": 32}),
            ("size", {"payload": b"x" * 16, "raw_bytes": 32}),
            ("size", {"payload": b"x" * 16, "raw_bytes": (64 << 20) + 1, "codec": 1}),
            ("layout", {"layout": b"l" * 32}),
            ("position", {"position": 0}),
            ("position", {"position": 12}),
            ("parent", {"position": 8, "parent": b"p" * 16}),
            ("parent", {"position": 16, "parent": bytes(16)}),
            ("codec", {"codec": 1, "payload": b"no frame", "raw_bytes": 32}),
        ],
    )
    def test_each_broken_rule_has_its_reason_and_the_next_record_is_stored(self, caller, known, reason, forged):
        document, keys = known
        good = chain_records(document, keys)[2]
        fields = {"position": 16, "parent": keys[0][:16], "payload": payload_of(document, HISTORY, keys[1]), **forged}
        kind = fields.pop("kind", HISTORY)
        answer = caller.store(record(document, kind, keys[1], **fields) + good).json()
        assert answer["rejected"] == [{"index": 0, "key": keys[1].hex(), "reason": reason}]
        assert answer["stored"] == 1

    @pytest.mark.parametrize("frame", ["other size", "no size", "dictionary", "window"])
    def test_a_frame_that_its_header_contradicts_is_refused(self, caller, frame):
        document = layout_document(history_bytes=16 << 20)
        caller.register(document)
        (key,) = chain(document, 1)
        frames = {
            "other size": zstandard.ZstdCompressor().compress(bytes(1 << 20)),
            "no size": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(16 << 20)),
            "dictionary": zstandard.ZstdCompressor(
                dict_data=zstandard.train_dictionary(1024, [bytes([each]) * 500 for each in range(200)])
            ).compress(bytes(16 << 20)),
            "window": _wide_frame(16 << 20),
        }
        bad = record(document, HISTORY, key, position=8, payload=frames[frame], codec=1, raw_bytes=16 << 20)
        assert caller.store(bad).json()["rejected"] == [{"index": 0, "key": key.hex(), "reason": "codec"}]

    def test_a_frame_that_does_not_decode_never_keeps_the_good_record_out(self, caller):
        document = layout_document(history_bytes=4096)
        caller.register(document)
        (key,) = chain(document, 1)
        frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(4096)))
        good = record(document, HISTORY, key, position=8, payload=bytes(frame), codec=1, raw_bytes=4096)
        frame[-1] ^= 1  # of the frame's own checksum, inside a record whose checksum is right
        bad = record(document, HISTORY, key, position=8, payload=bytes(frame), codec=1, raw_bytes=4096)
        assert caller.store(bad).json()["rejected"] == [{"index": 0, "key": key.hex(), "reason": "codec"}]
        refused = caller.http.put(caller.path(document, "history", key), content=bad, headers={"content-type": RECORDS})
        assert "does not decode" in problem(refused, 422)["detail"]
        assert caller.store(good).json()["stored"] == 1

    def test_a_body_of_more_records_than_a_request_may_name_ends_there(self, caller, known):
        document, keys = known
        first, second = chain_records(document, keys)[:2]
        answer = caller.store(first * 16_384 + second).json()
        assert answer == {
            "stored": 0,
            "present": 16_384,
            "rejected": [{"index": 16_384, "key": None, "reason": "framing"}],
        }
        assert caller.exists(document, ("history", keys[1])) == [False]

    def test_a_single_put_and_a_store_name_the_same_reason(self, caller):
        document = layout_document(replay_tokens=0)
        del document["streams"][1]
        caller.register(document)
        (key,) = chain(document, 1)
        state = record(document, STATE, key, position=8, payload=b"12345678")
        assert caller.store(state).json()["rejected"][0]["reason"] == "kind"
        answer = caller.http.put(caller.path(document, "state", key), content=state, headers={"content-type": RECORDS})
        assert problem(answer, 422)["reason"] == "kind"

    def test_a_lost_framing_ends_the_body_and_keeps_what_came_before(self, caller, known):
        document, keys = known
        records = chain_records(document, keys)
        answer = caller.store(records[1] + b"garbage" * 40 + records[2]).json()
        assert answer == {"stored": 1, "present": 0, "rejected": [{"index": 1, "key": None, "reason": "framing"}]}
        assert caller.exists(document, ("history", keys[2])) == [False]

    @pytest.mark.parametrize("cut", [1, 31, 33, 127, 159])
    def test_a_body_that_ends_early_keeps_what_was_whole(self, caller, known, cut):
        document, keys = known
        records = chain_records(document, keys)
        answer = caller.store(records[1] + records[2][:-cut]).json()
        assert answer == {"stored": 1, "present": 0, "rejected": [{"index": 1, "key": None, "reason": "framing"}]}

    def test_trailing_bytes_are_a_lost_framing(self, caller, known):
        document, keys = known
        answer = caller.store(chain_records(document, keys)[1] + b"tail").json()
        assert answer["stored"] == 1
        assert answer["rejected"] == [{"index": 1, "key": None, "reason": "framing"}]

    @pytest.mark.parametrize("claimed", [(64 << 20) + 1, 2**40, 2**63, 2**64 - 1])
    def test_a_claimed_length_over_the_limit_is_refused_before_anything_is_allocated(
        self, caller, known, open_service, claimed
    ):
        document, keys = known
        bad = record(document, HISTORY, keys[1], position=8, payload=b"", raw_bytes=claimed, stored_bytes=claimed)
        before = peak_memory(open_service.pid)
        answer = caller.store(bad + bytes(1000)).json()
        assert answer["rejected"] == [{"index": 0, "key": None, "reason": "framing"}]
        assert peak_memory(open_service.pid) - before < 32 << 20

    def test_an_answer_for_what_is_missing_cannot_be_stored(self, caller, known):
        document, keys = known
        answer = caller.store(missing(document, HISTORY, keys[1])).json()
        assert answer["rejected"] == [{"index": 0, "key": keys[1].hex(), "reason": "flags"}]

    def test_a_state_in_a_layout_without_states_is_refused(self, caller):
        document = layout_document(replay_tokens=0)
        del document["streams"][1]
        caller.register(document)
        (key,) = chain(document, 1)
        answer = caller.store(record(document, STATE, key, position=8, payload=b"")).json()
        assert answer["rejected"] == [{"index": 0, "key": key.hex(), "reason": "kind"}]


def peak_memory(pid):
    """The most that the process ever had resident, in bytes."""
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123 - no file of the project's
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _wide_frame(size_bytes):
    params = zstandard.ZstdCompressionParameters(window_log=24, write_content_size=True)
    frame = zstandard.ZstdCompressor(compression_params=params).compressobj(size=size_bytes)
    packed = b"".join(frame.compress(bytes(1 << 20)) for _ in range(size_bytes >> 20)) + frame.flush()
    descriptor = bytearray(packed)
    if descriptor[4] & 0x20:  # a single segment has no window of its own: write the header that has one
        return _with_window(packed, size_bytes)
    return packed


def _with_window(packed, size_bytes):
    content_size = struct.pack("<I", size_bytes)
    body_at = packed.index(content_size) + 4
    return packed[:4] + bytes([0x80 | (packed[4] & 0x04)]) + bytes([(24 - 10) << 3]) + content_size + packed[body_at:]


class TestBodies:
    """Sizes and types of bodies."""

    def test_an_empty_body_is_malformed(self, caller):
        problem(caller.store(b""), 400)
        problem(caller.store(iter([])), 400)

    def test_a_declared_length_over_256_mib_is_refused_before_a_byte_of_it_is_sent(self, open_service):
        status, answer = post_records(open_service, [], content_length=(256 << 20) + 1)
        assert status == 413
        assert str(256 << 20) in answer["detail"]

    def test_a_body_of_exactly_256_mib_is_read(self, open_service):
        status, answer = post_records(open_service, skipped_records(256), content_length=256 << 20)
        assert status == 200
        assert [each["reason"] for each in answer["rejected"]] == ["layout"] * 256

    def test_a_chunked_body_over_256_mib_is_refused_when_it_gets_there(self, open_service):
        status, answer = post_records(open_service, [*skipped_records(256), b"x"])
        assert status == 413
        assert str(256 << 20) in answer["detail"]

    @pytest.mark.parametrize("content_type", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""])
    def test_records_come_as_records_or_octets(self, caller, known, content_type):
        document, keys = known
        body = chain_records(document, keys)[1]
        for answer in (
            caller.store(body, content_type),
            caller.http.put(
                caller.path(document, "history", keys[1]), content=body, headers={"content-type": content_type}
            ),
        ):
            assert RECORDS in problem(answer, 415)["detail"]

    @pytest.mark.parametrize(
        "content_type", ["text/plain", "application/octet-stream", "application/x-www-form-urlencoded"]
    )
    def test_json_comes_as_json(self, caller, content_type):
        answer = caller.http.post("/v1/prefixes:lookup", content=b"{}", headers={"content-type": content_type})
        problem(answer, 415)

    @pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/problem+json", None])
    def test_json_under_its_other_names_is_read(self, caller, known, content_type):
        document, keys = known
        body = f'{{"layout": "{fingerprint(document).hex()}", "block_keys": ["{keys[0].hex()}"]}}'
        headers = {"content-type": content_type} if content_type else {}
        assert caller.http.post("/v1/prefixes:lookup", content=body, headers=headers).status_code == 200

    def test_a_json_body_over_8_mib_is_refused(self, caller):
        problem(caller.http.post("/v1/prefixes:lookup", content=b" " * ((8 << 20) + 1), headers=JSON), 413)


ENDPOINTS = [
    "/v1/prefixes:lookup",
    "/v1/prefixes:touch",
    "/v1/records:exists",
    "/v1/records:fetch",
    "/v1/records:report",
]


class TestJson:
    """Malformed JSON, wrong types, unknown fields, keys of wrong length."""

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    @pytest.mark.parametrize("body", [b"", b"{", b"nothing", b"\xff\xfe", b"[" * 50_000])
    def test_malformed_json_is_400_everywhere(self, caller, endpoint, body):
        assert "JSON" in problem(caller.http.post(endpoint, content=body, headers=JSON), 400)["detail"]

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    @pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"5", b'{"layout": 5}'])
    def test_json_of_another_shape_is_422_everywhere(self, caller, endpoint, body):
        problem(caller.http.post(endpoint, content=body, headers=JSON), 422)

    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("block_keys", ["ab" * 31], "block_keys.0"),
            ("block_keys", ["ab" * 33], "block_keys.0"),
            ("block_keys", ["AB" * 32], "block_keys.0"),
            ("block_keys", ["ab" * 32, "xy" * 32], "block_keys.1"),
            ("block_keys", ["ab" * 32, 5], "block_keys.1"),
            ("block_keys", "ab" * 32, "block_keys"),
            ("layout", "ab" * 31, "layout"),
            ("layout", None, "layout"),
            ("colour", "red", "colour"),
        ],
    )
    def test_a_wrong_field_of_a_lookup_is_named(self, caller, known, field, value, named):
        document, keys = known
        body = {"layout": fingerprint(document).hex(), "block_keys": [keys[0].hex()], field: value}
        for endpoint in ("/v1/prefixes:lookup", "/v1/prefixes:touch"):
            assert named in problem(caller.http.post(endpoint, json=body), 422)["detail"]

    @pytest.mark.parametrize(
        ("entry", "named"),
        [
            ({"kind": "histories", "key": "ab" * 32}, "records.0.kind"),
            ({"kind": 1, "key": "ab" * 32}, "records.0.kind"),
            ({"kind": "history", "key": "ab" * 31}, "records.0.key"),
            ({"kind": "history"}, "records.0.key"),
            ({"kind": "history", "key": "ab" * 32, "position": 8}, "records.0.position"),
        ],
    )
    def test_a_wrong_field_of_a_record_is_named(self, caller, known, entry, named):
        body = {"layout": fingerprint(known[0]).hex(), "records": [entry]}
        for endpoint in ("/v1/records:fetch", "/v1/records:exists", "/v1/prefixes:touch"):
            assert named in problem(caller.http.post(endpoint, json=body), 422)["detail"]

    @pytest.mark.parametrize("endpoint", ["/v1/records:fetch", "/v1/records:exists", "/v1/prefixes:touch"])
    def test_16385_records_are_too_many(self, caller, known, endpoint):
        document, keys = known
        body = caller.naming(document, *[("history", keys[0])] * 16_385)
        problem(caller.http.post(endpoint, json=body), 413)
        body["records"].pop()
        assert caller.http.post(endpoint, json=body).status_code == 200

    def test_wrong_paths_are_named(self, caller, known):
        document, keys = known
        layout, key = fingerprint(document).hex(), keys[0].hex()
        for path, named in (
            (f"/v1/records/{layout[:-2]}/history/{key}", "layout"),
            (f"/v1/records/{layout}/histories/{key}", "kind"),
            (f"/v1/records/{layout}/history/{key[:-1]}", "key"),
            ("/v1/layouts/xyz", "fingerprint"),
        ):
            assert named in problem(caller.http.get(path), 422)["detail"]


class TestUnknown:
    """Names that are not known."""

    def test_an_unknown_layout_is_409_where_a_body_names_it(self, caller):
        document = layout_document()
        keys = chain(document, 1)
        report = {"layout": fingerprint(document).hex(), "kind": "history", "key": keys[0].hex()}
        named = caller.naming(document, ("history", keys[0]))
        for answer in (
            caller.lookup(document, keys),
            caller.fetch(document, ("history", keys[0])),
            caller.http.post("/v1/records:exists", json=named),
            caller.http.post("/v1/prefixes:touch", json=named),
            caller.http.post("/v1/records:report", json=report),
        ):
            assert fingerprint(document).hex() in problem(answer, 409)["detail"]

    def test_records_of_an_unknown_layout_are_refused(self, caller):
        document = layout_document()
        keys = chain(document, 2)
        answer = caller.store(b"".join(chain_records(document, keys)))
        assert answer.status_code == 200
        assert [each["reason"] for each in answer.json()["rejected"]] == ["layout", "layout"]

    def test_unknown_paths_and_methods_are_problems_too(self, caller):
        assert "/nowhere" in problem(caller.http.get("/nowhere"), 404)["detail"]
        problem(caller.http.get("/v1/layouts/"), 404)
        refused = caller.http.patch("/v1/stats")
        problem(refused, 405)
        assert refused.headers["allow"] == "GET"
        assert caller.http.post("/v1/tenants/default").headers["allow"] == "DELETE, GET, PATCH, PUT"

    @pytest.mark.parametrize("body", [{"strategy": {"kind": "often"}}, {"strategy": "full"}, {"codec": "gzip"},
                                      {"quota_bytes": -1}, {"quota_bytes": 2**53}, {"quota_bytes": "5"},
                                      {"ttl_seconds": 0}, {"ttl_seconds": 1e308}, {"colour": 1},
                                      {"strategy": {"kind": "periodic"}}, {"strategy": None}])  # fmt: skip
    def test_wrong_tenant_settings_are_named(self, caller, body):
        (field,) = body
        for method, name in (("PUT", "fresh"), ("PATCH", "default")):
            assert field in problem(caller.http.request(method, f"/v1/tenants/{name}", json=body), 422)["detail"]
        problem(caller.http.get("/v1/tenants/fresh"), 404)

    @pytest.mark.parametrize("name", ["UPPER", "-dash", "a" * 64, "sp%20ace", "sl%2Fash"])
    def test_a_wrong_tenant_name_is_refused(self, caller, name):
        assert caller.http.put(f"/v1/tenants/{name}", json={}).status_code in (404, 422)


def skipped_records(count):
    """That many records of 1 MiB, of a layout that nobody registered: they are read and thrown away."""
    return [record(layout_document(), HISTORY, b"k" * 32, position=8, payload=bytes((1 << 20) - 128))] * count


def post_records(service, pieces, *, content_length=None):
    """Store by http.client, which does not copy what it sends; chunked without a length. Status and answer."""
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/v1/records:store")
    connection.putheader("content-type", RECORDS)
    connection.putheader(
        *(("transfer-encoding", "chunked") if content_length is None else ("content-length", str(content_length)))
    )
    connection.endheaders(iter(pieces), encode_chunked=content_length is None)
    with contextlib.closing(connection):
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
