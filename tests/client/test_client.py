"""The client's verbs against an honest service."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import client_samples as samples
from kvcairn_client.client import Client
from kvcairn_client.errors import BadAnswer, ClosedClient, LayoutUnknown, Refused, Unauthorized
from kvcairn_client.faults import answer, instead, problem
from kvcairn_client.records import Lookup, Ref
from kvcairn_client.testing import FakeService
from kvcairn_protocol.errors import BadParent, BadSize
from kvcairn_protocol.layout import Kind

LAYOUT = samples.layout()


@pytest.mark.parametrize("codec", ["auto", "raw", "zstd", "shuffle-zstd"])
def test_what_is_stored_comes_back_byte_for_byte(client: Client, codec: str) -> None:
    records = samples.prompt(LAYOUT, 6, states=[2, 5])
    answer = client.store(LAYOUT, records, codec=codec)
    assert (answer.stored, answer.present, answer.rejected) == (8, 0, [])
    wishes, buffers = samples.wanted(LAYOUT, records)
    result = client.fetch(LAYOUT, wishes)
    assert result.loaded == [True] * 8
    assert result.fault is None
    assert [bytes(buffer) for buffer in buffers] == [bytes(record.payload) for record in records]


def test_bytes_received_counts_what_travelled(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 2)
    client.store(LAYOUT, records)
    wishes, _ = samples.wanted(LAYOUT, records)
    assert client.fetch(LAYOUT, wishes).bytes_received == sum(map(len, service.shelf.records.values()))


def test_storing_again_stores_nothing_twice(client: Client) -> None:
    records = samples.prompt(LAYOUT, 3)
    client.store(LAYOUT, records)
    answer = client.store(LAYOUT, records)
    assert (answer.stored, answer.present) == (0, 3)


def test_a_record_that_is_not_there_is_a_miss_between_its_neighbours(client: Client) -> None:
    records = samples.prompt(LAYOUT, 3)
    client.store(LAYOUT, [records[0], records[2]])
    wishes, buffers = samples.wanted(LAYOUT, records)
    result = client.fetch(LAYOUT, wishes)
    assert result.loaded == [True, False, True]
    assert bytes(buffers[2]) == records[2].payload


def test_a_lookup_finds_the_run_and_the_states_inside_it(client: Client) -> None:
    client.store(LAYOUT, samples.prompt(LAYOUT, 4, states=[0, 2]))
    found = client.lookup(LAYOUT, samples.keys(7))
    assert (found.history_blocks, found.hit_tokens, found.state_tokens) == (4, 32, (24, 8))
    assert found.answered


def test_a_lookup_of_nothing_finds_nothing(client: Client) -> None:
    assert client.lookup(LAYOUT, []).hit_tokens == 0


def test_the_layout_is_registered_once_a_client(client: Client, service: FakeService) -> None:
    for _ in range(3):
        client.lookup(LAYOUT, samples.keys(1))
    client.store(LAYOUT, samples.prompt(LAYOUT, 1))
    assert [line for line in service.seen if line.startswith("PUT")] == [f"PUT /v1/layouts/{LAYOUT.fingerprint.hex()}"]


def test_a_service_that_forgot_the_layout_is_told_again(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 2)
    client.store(LAYOUT, records)
    service.shelf.forget()
    assert client.lookup(LAYOUT, samples.keys(2)).history_blocks == 0
    service.shelf.forget()
    wishes, _ = samples.wanted(LAYOUT, records)
    assert client.fetch(LAYOUT, wishes).loaded == [False, False]
    service.shelf.forget()
    assert client.store(LAYOUT, records).stored == 2


def test_a_service_that_will_not_learn_the_layout_is_asked_twice_only(client: Client, service: FakeService) -> None:
    service.faults["/v1/prefixes:lookup"] = instead(problem(409))
    with pytest.raises(LayoutUnknown):
        client.lookup(LAYOUT, samples.keys(2))
    assert service.seen.count("POST /v1/prefixes:lookup") == 2


def test_bodies_keep_to_the_service_s_limit(client: Client, service: FakeService) -> None:
    record_bytes = 128 + LAYOUT.payload_bytes(Kind.HISTORY)
    service.shelf.limits = service.shelf.limits.model_copy(update={"body_bytes": 2 * record_bytes})
    answer = client.store(LAYOUT, samples.prompt(LAYOUT, 5), codec="raw")
    assert answer.stored == 5
    assert service.seen.count("POST /v1/records:store") == 3


def test_requests_keep_to_the_service_s_number_of_keys(client: Client, service: FakeService) -> None:
    service.shelf.limits = service.shelf.limits.model_copy(update={"keys_per_request": 2})
    records = samples.prompt(LAYOUT, 5)
    client.store(LAYOUT, records)
    wishes, buffers = samples.wanted(LAYOUT, records)
    assert client.fetch(LAYOUT, wishes).loaded == [True] * 5
    assert [bytes(buffer) for buffer in buffers] == [record.payload for record in records]
    refs = [Ref(record.kind, record.key) for record in records]
    assert client.exists(LAYOUT, [*refs, Ref(Kind.STATE, samples.key(0))]) == [True] * 5 + [False]
    assert client.touch(LAYOUT, refs=refs) == 5
    assert client.lookup(LAYOUT, samples.keys(5)).history_blocks == 2


def test_touch_takes_blocks_and_records(client: Client, service: FakeService) -> None:
    client.store(LAYOUT, samples.prompt(LAYOUT, 2, states=[1]))
    assert client.touch(LAYOUT, block_keys=samples.keys(2), refs=[Ref(Kind.STATE, samples.key(1))]) == 3
    assert service.shelf.touched == [samples.key(i).hex() for i in (0, 1, 1)]


def test_fetch_bytes_gives_the_payload_or_none(client: Client) -> None:
    records = samples.prompt(LAYOUT, 2)
    client.store(LAYOUT, records[:1])
    assert client.fetch_bytes(LAYOUT, Kind.HISTORY, samples.key(0)) == records[0].payload
    assert client.fetch_bytes(LAYOUT, Kind.HISTORY, samples.key(1)) is None


def test_targets_may_be_views_of_any_shape(client: Client) -> None:
    records = samples.prompt(LAYOUT, 1)
    client.store(LAYOUT, records)
    wishes, buffers = samples.wanted(LAYOUT, records)
    shaped = memoryview(buffers[0]).cast("B", (2, len(buffers[0]) // 2))
    assert client.fetch(LAYOUT, [wishes[0]._replace(target=shaped)]).loaded == [True]
    assert bytes(buffers[0]) == records[0].payload


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (memoryview(bytes(512)), "writable"),
        (memoryview(bytearray(511)), "has 512 bytes; found 511"),
        (memoryview(bytearray(1024))[::2], "contiguous"),
    ],
)
def test_a_target_that_cannot_take_its_record_is_refused_before_anything_is_sent(
    client: Client, service: FakeService, target: memoryview, message: str
) -> None:
    wish = samples.wanted(LAYOUT, samples.prompt(LAYOUT, 1))[0][0]
    with pytest.raises(ValueError, match=message):
        client.fetch(LAYOUT, [wish._replace(target=target)])
    assert service.seen == []


def test_a_key_of_another_length_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="key 1 has 31"):
        client.lookup(LAYOUT, [bytes(32), bytes(31)])


def test_a_record_that_no_reader_would_accept_is_not_sent(client: Client, service: FakeService) -> None:
    record = samples.outgoing(LAYOUT, Kind.HISTORY, 1)
    with pytest.raises(BadSize):
        client.store(LAYOUT, [record._replace(payload=bytes(3))])
    with pytest.raises(BadParent):
        client.store(LAYOUT, [record._replace(parent=bytes(16))])
    assert "POST /v1/records:store" not in service.seen


def test_the_token_names_the_tenant_on_both_planes(service: FakeService) -> None:
    right, wrong = "kvc-1", "kvc-2"
    service.tokens = {right}
    with Client(service.url, token=right) as client:
        client.store(LAYOUT, samples.prompt(LAYOUT, 1))
        assert client.stats().records == 1
    with Client(service.url, token=wrong) as client, pytest.raises(Unauthorized):
        client.stats()


@pytest.mark.parametrize("token", ["", "two words", "line\r\nbreak", "ümlaut"])
def test_a_token_that_cannot_be_sent_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="token") as caught:
        Client(token=token)
    assert not token or token not in str(caught.value)


def test_a_refusal_carries_the_service_s_own_words(client: Client, service: FakeService) -> None:
    service.faults["/v1/prefixes:lookup"] = instead(problem(413))
    with pytest.raises(Refused, match="on purpose") as caught:
        client.lookup(LAYOUT, samples.keys(1))
    assert caught.value.status == 413
    assert caught.value.problem is not None
    assert caught.value.problem.detail == "on purpose"


def test_connections_are_used_again(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 2)
    for _ in range(5):
        client.store(LAYOUT, records)
        wishes, _buffers = samples.wanted(LAYOUT, records)
        assert client.fetch(LAYOUT, wishes).loaded == [True, True]
        client.lookup(LAYOUT, samples.keys(2))
    assert service.accepted == 2, "one for control, one for data"


def test_idle_connections_that_died_are_replaced_unseen(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 2)
    for _ in range(3):
        client.store(LAYOUT, records)
        assert client.lookup(LAYOUT, samples.keys(2)).history_blocks == 2
        service.hang_up()


def test_a_restarted_service_is_found_again(service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 2)
    with Client(service.url, budgets=samples.QUICK) as client:
        client.store(LAYOUT, records)
        service.close()
        with FakeService(port=service.port, shelf=service.shelf):
            wishes, buffers = samples.wanted(LAYOUT, records)
            assert client.fetch(LAYOUT, wishes).loaded == [True, True]
            assert client.lookup(LAYOUT, samples.keys(2)).history_blocks == 2
            assert bytes(buffers[1]) == records[1].payload


def test_threads_share_a_client(client: Client, service: FakeService) -> None:
    records = samples.prompt(LAYOUT, 8, states=[3, 7])
    start = threading.Barrier(6)

    def work(_: int) -> bool:
        start.wait(10)
        for _ in range(5):
            client.store(LAYOUT, records)
            wishes, buffers = samples.wanted(LAYOUT, records)
            result = client.fetch(LAYOUT, wishes)
            if result.loaded != [True] * 10 or [bytes(b) for b in buffers] != [r.payload for r in records]:
                return False
            if client.lookup(LAYOUT, samples.keys(8)).state_tokens != (64, 32):
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    client.close()
    with pytest.raises(ClosedClient):
        client.stats()
    with pytest.raises(ClosedClient):
        client.fetch(LAYOUT, samples.wanted(LAYOUT, samples.prompt(LAYOUT, 1))[0])


def _error_in_child(client: Client) -> str:
    try:
        client.stats()
    except ClosedClient as error:
        return str(error)
    return "no error"


def test_a_client_carried_across_a_fork_says_so(client: Client) -> None:
    client.stats()
    with multiprocessing.get_context("fork").Pool(1, _keep, (client,)) as pool:
        assert "another one in this process" in pool.apply(_use_kept)
    client.stats()


_kept: list[Client] = []


def _keep(client: Client) -> None:
    _kept.append(client)


def _use_kept() -> str:
    return _error_in_child(_kept[-1])


@pytest.mark.parametrize(("blocks", "tokens"), [(5, 40), (-1, -8), (2, 17), (1 << 60, 1 << 63)])
def test_a_lookup_that_contradicts_its_question_is_no_answer(
    client: Client, service: FakeService, blocks: int, tokens: int
) -> None:
    body = (
        f'{{"history_blocks": {blocks}, "hit_tokens": {tokens}, "state_tokens": [], '
        '"strategy": {"kind": "anchored"}, "codec": "auto"}'
    )
    service.faults["/v1/prefixes:lookup"] = instead(answer(200, "application/json", body.encode()))
    with pytest.raises(BadAnswer):
        client.lookup(LAYOUT, samples.keys(4))


def test_states_outside_the_run_are_not_believed(client: Client, service: FakeService) -> None:
    body = (
        b'{"history_blocks": 2, "hit_tokens": 16, "state_tokens": [24, 16, 12, 8, 8, 0, -8], '
        b'"strategy": {"kind": "zero"}, "codec": "raw"}'
    )
    service.faults["/v1/prefixes:lookup"] = instead(answer(200, "application/json", body))
    found = client.lookup(LAYOUT, samples.keys(4))
    assert found.state_tokens == (16, 8)
    assert (found.strategy.kind, found.codec) == ("zero", "raw")


def test_a_lookup_s_own_default_is_an_honest_nothing() -> None:
    assert Lookup() == Lookup(history_blocks=0, hit_tokens=0, state_tokens=(), codec="auto")
