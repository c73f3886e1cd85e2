"""Lookup and touch over HTTP."""

from service_samples import STATE, chain, chain_records, fingerprint, layout_document, payload_of, record


def prepared(caller, blocks, **options):
    document = layout_document(**options)
    assert caller.register(document).status_code == 201
    return document, chain(document, blocks)


def test_everything_that_was_stored_is_found(caller):
    document, keys = prepared(caller, 20)
    caller.store(b"".join(chain_records(document, keys)))
    answer = caller.lookup(document, keys).json()
    assert (answer["history_blocks"], answer["hit_tokens"], answer["state_tokens"]) == (20, 160, [])
    assert answer["strategy"] == {"kind": "anchored"}
    assert answer["codec"] == "auto"


def test_a_run_ends_at_the_first_gap(caller):
    document, keys = prepared(caller, 6)
    records = chain_records(document, keys)
    caller.store(b"".join(records[:3] + records[4:]))
    assert caller.lookup(document, keys).json()["history_blocks"] == 3
    assert caller.lookup(document, keys[1:]).json()["history_blocks"] == 0


def test_states_inside_the_run_are_listed_deepest_first_and_others_are_not(caller):
    document, keys = prepared(caller, 6)
    states = chain_records(document, keys, kind=STATE)
    caller.store(b"".join([*chain_records(document, keys[:4]), states[0], states[2], states[5]]))
    assert caller.lookup(document, keys).json()["state_tokens"] == [24, 8]


def test_a_state_stored_under_another_position_is_never_listed(caller):
    document, keys = prepared(caller, 3)
    forged = record(
        document, STATE, keys[1], position=24, parent=keys[0][:16], payload=payload_of(document, STATE, keys[1])
    )
    assert caller.store(b"".join([forged, *chain_records(document, keys)])).json()["stored"] == 4
    assert caller.lookup(document, keys).json()["state_tokens"] == []


def test_a_lookup_in_an_unchained_layout_is_refused(caller):
    document, keys = prepared(caller, 1, chained=False)
    assert caller.lookup(document, keys).status_code == 422


def test_no_keys_are_a_miss(caller):
    document, _ = prepared(caller, 0)
    assert caller.lookup(document, []).json()["history_blocks"] == 0


def test_16384_keys_are_allowed_and_one_more_is_not(caller):
    document, keys = prepared(caller, 1)
    assert caller.lookup(document, keys * 16_384).status_code == 200
    refused = caller.lookup(document, keys * 16_385)
    assert refused.status_code == 413
    assert "16384" in refused.json()["detail"]


def test_touch_counts_uses_of_blocks_and_of_records(caller):
    document, keys = prepared(caller, 4)
    caller.store(b"".join(chain_records(document, keys[:3]) + chain_records(document, keys[:1], kind=STATE)))
    blocks = {"layout": fingerprint(document).hex(), "block_keys": [key.hex() for key in keys]}
    assert caller.http.post("/v1/prefixes:touch", json=blocks).json() == {"touched": 3}
    named = caller.naming(document, ("state", keys[0]), ("state", keys[1]))
    assert caller.http.post("/v1/prefixes:touch", json=named).json() == {"touched": 1}
    kinds = {each["kind"]: each for each in caller.http.get("/v1/stats").json()["kinds"] if _is_of(each, document)}
    assert (kinds["history"]["uses"], kinds["history"]["reused_records"]) == (3, 3)
    assert (kinds["state"]["uses"], kinds["state"]["reused_records"]) == (1, 1)


def test_lookups_and_exists_are_no_uses(caller):
    document, keys = prepared(caller, 2)
    caller.store(b"".join(chain_records(document, keys)))
    caller.lookup(document, keys)
    caller.exists(document, ("history", keys[0]))
    kinds = [each for each in caller.http.get("/v1/stats").json()["kinds"] if _is_of(each, document)]
    assert [each["uses"] for each in kinds] == [0]


def test_salted_chains_do_not_meet(caller):
    document, keys = prepared(caller, 3)
    salted = chain(document, 3, salt=b"user-1")
    caller.store(b"".join(chain_records(document, keys)))
    assert caller.lookup(document, salted).json()["history_blocks"] == 0


def _is_of(entry, document):
    return entry["layout"] == fingerprint(document).hex()
