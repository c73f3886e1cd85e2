"""CachedPrefill over a store that lies: what it computes is what an uninterrupted run computes, or a key is missing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import service_samples
from kvcairn_client.client import Client
from kvcairn_client.report import PrefillResult
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.layout import Kind, Layout
from service_caller import Caller
from serving import ServiceProcess, running_service
from tiny_models import Oracle, differences, make_model, make_prompt, same_bits

RATIOS = (0, 4, 128)
STEP = 128
PROMPT = make_prompt(3 * STEP + 10)
ORACLE = Oracle(make_model(RATIOS), step=STEP)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(tmp_path_factory.mktemp("mac") / "data") as running:
        yield running


def run(client: Client | str) -> tuple[PrefillResult, Layout, list[bytes]]:
    """One server's life: prefill, store, end."""
    with CachedPrefill(make_model(RATIOS), client, model_id="tiny", block_tokens=STEP) as prefill:
        result = prefill(PROMPT)
        assert prefill.flush()
        return result, prefill.layout, list(result.block_keys)


def is_right(result: PrefillResult) -> bool:
    cache, logits = ORACLE.run(PROMPT)
    return same_bits(result.logits, logits) and differences(result.cache, cache) == []


def swap_states_and_blocks(process: ServiceProcess, layout: Layout, keys: list[bytes]) -> None:
    """Put block 0's entries under block 1, and noise into the last state, with good checksums."""
    document = json.loads(layout.canonical)
    with process.http() as http:
        caller = Caller(http)
        first = http.get(caller.path(document, "history", keys[0])).content[128:]
        state = http.get(caller.path(document, "state", keys[2]))
        assert state.status_code == 200
        noise = bytes(byte ^ 0x10 for byte in state.content[128:])
        for kind, index, payload in ((Kind.HISTORY, 1, first), (Kind.STATE, 2, noise)):
            path = caller.path(document, kind.label, keys[index])
            assert http.delete(path).status_code == 204
            forged = service_samples.record(
                document, kind, keys[index], position=(index + 1) * STEP, parent=keys[index - 1][:16], payload=payload
            )
            assert http.put(path, content=forged, headers={"content-type": service_samples.RECORDS}).status_code == 201


def test_a_lying_store_costs_hits_and_no_bit(process: ServiceProcess) -> None:
    with Client(process.url, mac_key=KEY) as client:
        assert is_right(run(client)[0])
        whole, layout, keys = run(client)
        assert (whole.report.hit_tokens, whole.report.forged_records) == (3 * STEP, 0)
        assert is_right(whole)
        swap_states_and_blocks(process, layout, keys)
        lied_to, _, _ = run(client)
        assert is_right(lied_to)
        assert lied_to.report.forged_records == 2
        assert lied_to.report.hit_tokens == STEP
        healed, _, _ = run(client)
        assert (healed.report.hit_tokens, healed.report.forged_records) == (3 * STEP, 0)
        assert is_right(healed)


def test_without_a_key_the_lie_is_computed_with(process: ServiceProcess) -> None:
    with Client(process.url) as client:
        _, layout, keys = run(client)
        swap_states_and_blocks(process, layout, keys)
        assert not is_right(run(client)[0])


def test_a_url_takes_the_keys_that_the_environment_names(
    process: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY.hex()}\n")
    plain = run(process.url)[1]
    monkeypatch.setenv("KVCAIRN_MAC_KEY_FILE", str(path))
    _, layout, _ = run(process.url)
    assert layout.identity == {**plain.identity, "mac": "hmac-sha256:acfbf5690be48d66"}
    assert run(process.url)[0].report.hit_tokens == 3 * STEP


def test_no_window_record_is_stored_where_it_could_not_be_authenticated(process: ServiceProcess) -> None:
    key = bytes(range(1, 33))
    with process.http() as http, Client(process.url, mac_key=key) as client:
        assert http.patch("/v1/tenants/default", json={"strategy": {"kind": "full"}}).status_code == 200
        try:
            _, layout, _ = run(client)
            run(client)
        finally:
            assert http.patch("/v1/tenants/default", json={"strategy": {"kind": "anchored"}}).status_code == 200
        kinds = {
            each["kind"] for each in http.get("/v1/stats").json()["kinds"] if each["layout"] == layout.fingerprint.hex()
        }
    assert kinds == {"history", "state"}


def test_snapshots_and_forks_work_with_a_key(process: ServiceProcess) -> None:
    with (
        Client(process.url, mac_key=KEY) as client,
        CachedPrefill(make_model(RATIOS), client, model_id="tiny", block_tokens=STEP) as prefill,
    ):
        result = prefill(PROMPT)
        with prefill.snapshot(result.cache, block_keys=result.block_keys) as session, session.fork() as fork:
            for again in (session.restore(), fork.restore()):
                assert differences(again, ORACLE.run(PROMPT)[0]) == []
        assert torch.is_tensor(result.logits)
