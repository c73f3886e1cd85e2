"""The packed layouts of DeepSeek-V4, to the byte, against the arithmetic of the published geometry."""

from fractions import Fraction

import pytest

from kvcairn_protocol.deepseek_v4 import Indexer, flash, packed, pro, replay_tokens
from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import Kind, Layout

ENTRY, FP8, FP4 = 584, 132, 68
OVERLAP_BYTES = 4 * 4 * (2 * 512 + 2 * 128)
"""Of one CSA layer: 4 rows of float32, kv and gate, of the compressor (512) and the indexer (128)."""


def by_token(layout: Layout) -> Fraction:
    return Fraction(layout.payload_bytes(Kind.HISTORY), layout.block_tokens)


def expected_by_token(*, csa: int, hca: int, indexer_key: int) -> Fraction:
    return Fraction(csa * (ENTRY + indexer_key), 4) + Fraction(hca * ENTRY, 128)


@pytest.mark.parametrize(("made", "bytes_a_token", "block_bytes"), [
    (flash("m"), 3850.25, 1_971_328),
    (flash("m", indexer="fp4"), 3514.25, 1_799_296),
    (pro("m"), 5511.4375, 2_821_856),
    (pro("m", indexer="fp4"), 5031.4375, 2_576_096),
])  # fmt: skip
def test_history_has_the_published_bytes_a_token(made: Layout, bytes_a_token: float, block_bytes: int) -> None:
    assert float(by_token(made)) == bytes_a_token
    assert made.payload_bytes(Kind.HISTORY) == block_bytes


@pytest.mark.parametrize(("indexer", "key"), [("fp8", FP8), ("fp4", FP4)])
@pytest.mark.parametrize("block_tokens", [128, 256, 512, 4096])
def test_history_is_made_of_csa_and_hca_entries_at_every_block(indexer: Indexer, key: int, block_tokens: int) -> None:
    made = flash("m", indexer=indexer, block_tokens=block_tokens), pro("m", indexer=indexer, block_tokens=block_tokens)
    assert by_token(made[0]) == expected_by_token(csa=21, hca=20, indexer_key=key)
    assert by_token(made[1]) == expected_by_token(csa=30, hca=31, indexer_key=key)


@pytest.mark.parametrize(("made", "layers", "csa", "total"), [
    (flash("m"), 43, 21, 3_644_416),
    (pro("m"), 61, 30, 5_174_272),
])  # fmt: skip
def test_a_state_is_windows_and_overlap_rows(made: Layout, layers: int, csa: int, total: int) -> None:
    windows, overlap = 128 * layers * ENTRY, csa * OVERLAP_BYTES
    assert made.payload_bytes(Kind.STATE) == windows + overlap == total


@pytest.mark.parametrize(("made", "full_bytes_a_token"), [(flash("m"), 25_112), (pro("m"), 35_624)])
def test_a_window_record_has_the_rows_that_the_state_lacks(made: Layout, full_bytes_a_token: int) -> None:
    assert made.payload_bytes(Kind.WINDOW) == (512 - 128) * full_bytes_a_token


@pytest.mark.parametrize(("made", "megabytes"), [(flash("m"), 504.7), (pro("m"), 722.4)])
def test_a_prefix_of_131072_tokens_has_the_published_size(made: Layout, megabytes: float) -> None:
    assert round(131_072 // 512 * made.payload_bytes(Kind.HISTORY) / 1e6, 1) == megabytes


@pytest.mark.parametrize(
    ("period", "percent"), [(512, 185), (1024, 92), (2048, 46), (4096, 23), (8192, 12), (16384, 6)]
)
def test_states_cost_the_published_share_of_history(period: int, percent: int) -> None:
    made = flash("m")
    assert round(100 * made.payload_bytes(Kind.STATE) / (period * float(by_token(made)))) == percent


def test_a_block_holds_128_csa_and_4_hca_entries_of_each_layer() -> None:
    rows = {segment.stream.name: segment.rows for segment in flash("m").segments(Kind.HISTORY)}
    assert rows == {"csa": 128, "csa_index": 128, "hca": 4}
    assert flash("m").unit_tokens == 128


@pytest.mark.parametrize(("window", "layers", "tokens"), [(128, 43, 5462), (128, 61, 7748), (128, 1, 128), (4, 9, 28)])
def test_a_replay_takes_a_window_a_layer_less_one_token_each(window: int, layers: int, tokens: int) -> None:
    assert replay_tokens(window, layers, overlap_tokens=4) == tokens == window * layers - (layers - 1)


def test_a_replay_takes_the_overlap_rows_where_they_reach_further_back_than_a_window() -> None:
    assert replay_tokens(4, 6, overlap_tokens=32) == 32 + 5 * 3
    assert [flash("m").replay_tokens, pro("m").replay_tokens] == [5462, 7748]


def test_layouts_of_different_formats_never_share_a_key() -> None:
    made = [flash("m"), flash("n"), flash("m", indexer="fp4"), flash("m", block_tokens=256), pro("m"), packed("m", [4])]
    assert len({layout.fingerprint for layout in made}) == len(made)


def test_an_unknown_ratio_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match="layer 1 compresses by 8"):
        packed("m", [4, 8])
