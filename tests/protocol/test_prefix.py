"""Prefix keys against hashlib and struct, and what must change them."""

import hashlib
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcairn_protocol.layout import Layout
from kvcairn_protocol.prefix import block_keys, object_key, parent_of, root_key
from protocol_samples import carry, history, layout, window

BLOCK = 8
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=5 * BLOCK)
SALTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def expected_keys(made: Layout, tokens: list[int], salt: str) -> list[bytes]:
    encoded = salt.encode("utf-8")
    fingerprint = hashlib.sha256(made.canonical).digest()
    key = hashlib.sha256(b"kvcairn/1" + fingerprint + len(encoded).to_bytes(4, "little") + encoded).digest()
    found = []
    for block in range(len(tokens) // BLOCK):
        ids = tokens[block * BLOCK : (block + 1) * BLOCK]
        key = hashlib.sha256(key + b"".join(struct.pack("<I", token) for token in ids)).digest()
        found.append(key)
    return found


@given(TOKENS, SALTS)
def test_keys_are_a_chain_of_sha_256_over_complete_blocks(tokens: list[int], salt: str) -> None:
    assert block_keys(layout(), tokens, salt=salt) == expected_keys(layout(), tokens, salt)


@given(TOKENS, TOKENS)
def test_a_longer_prompt_extends_the_keys_of_the_shorter(tokens: list[int], more: list[int]) -> None:
    keys = block_keys(layout(), tokens)
    assert block_keys(layout(), tokens + more)[: len(keys)] == keys


@given(st.lists(st.integers(0, 9), min_size=4 * BLOCK, max_size=4 * BLOCK), st.integers(0, 4 * BLOCK - 1))
def test_another_token_changes_its_block_and_all_that_follow(tokens: list[int], place: int) -> None:
    other = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
    same = [a == b for a, b in zip(block_keys(layout(), tokens), block_keys(layout(), other), strict=True)]
    assert same == [block < place // BLOCK for block in range(4)]


@given(SALTS, SALTS)
def test_another_salt_changes_every_key(salt: str, other: str) -> None:
    pairs = zip(block_keys(layout(), range(24), salt=salt), block_keys(layout(), range(24), salt=other), strict=True)
    assert [a == b for a, b in pairs] == [salt == other] * 3


@pytest.mark.parametrize("change", [
    {"model": "m"}, {"chained": False}, {"layers": 3}, {"replay_tokens": None}, {"identity": {"adapter": "a"}},
    {"identity": {}}, {"streams": [history(), window()]}, {"streams": [history(), carry(), window()]},
    {"streams": [history(dtype="int8"), window(), carry()]}, {"streams": [history(), window(rows=2), carry()]},
])  # fmt: skip
def test_every_field_of_the_layout_changes_every_key(change: dict[str, object]) -> None:
    assert not set(block_keys(layout(), range(24))) & set(block_keys(layout(**change), range(24)))


def test_blocks_of_another_size_share_no_key() -> None:
    assert not set(block_keys(layout(), range(32))) & set(block_keys(layout(block_tokens=16), range(32)))


def test_fewer_tokens_than_a_block_have_no_key() -> None:
    assert [len(block_keys(layout(), range(count))) for count in (0, 1, 7, 8, 9, 15, 16, 17)] == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
    ]


def test_the_empty_prefix_has_the_root_and_no_other_key_equals_it() -> None:
    assert root_key(layout()) not in block_keys(layout(), range(80))


@pytest.mark.parametrize("given_as", [
    list, tuple, np.array, lambda ids: np.array(ids, np.uint32), lambda ids: np.array(ids, np.int64),
    lambda ids: np.array(ids, ">u4"), lambda ids: np.repeat(np.array(ids), 2)[::2],
])  # fmt: skip
def test_the_keys_do_not_depend_on_how_the_tokens_are_given(given_as: Callable[[list[int]], list[int]]) -> None:
    assert block_keys(layout(), given_as(list(range(24)))) == block_keys(layout(), range(24))


def test_tokens_reach_the_whole_uint32() -> None:
    edges = [0, 2**31 - 1, 2**31, 2**32 - 1] * 2
    assert block_keys(layout(), edges) == expected_keys(layout(), edges, "")


@pytest.mark.parametrize("wrong", [-1, 2**32, 2**63, 2**64, 1.0, "1"])
@pytest.mark.parametrize("place", [0, 9])
def test_what_is_no_uint32_is_refused_also_in_the_incomplete_block(wrong: object, place: int) -> None:
    tokens: list[object] = list(range(10))
    tokens[place] = wrong
    with pytest.raises(ValueError, match="token ids"):
        block_keys(layout(), tokens)  # type: ignore[arg-type] # what is refused here


@pytest.mark.parametrize("wrong", [np.zeros((1, 16), int), np.zeros((16, 1), int), np.zeros(16, bool), np.zeros(16)])
def test_a_batch_or_an_array_of_anything_but_integers_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="token ids"):
        block_keys(layout(), wrong)


def test_the_parent_is_half_of_the_key_before() -> None:
    keys = block_keys(layout(), range(24))
    assert [parent_of(keys, index) for index in range(3)] == [bytes(16), keys[0][:16], keys[1][:16]]


def test_objects_keep_names_of_32_bytes_and_hash_all_others() -> None:
    assert object_key(b"k" * 32) == b"k" * 32
    for name in (b"", b"k" * 31, b"k" * 33):
        assert object_key(name) == hashlib.sha256(name).digest()
