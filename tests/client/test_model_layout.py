"""The layout of a loaded model: its streams, its refusals, and an identity that leaves nothing out."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV4ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deepseek_v4.modeling_deepseek_v4 import eager_attention_forward

from kvcairn_client.errors import ModelNotSupported
from kvcairn_client.identity import WITHOUT_EFFECT
from kvcairn_client.model_layout import layout_of
from kvcairn_client.transformers import CachedPrefill
from kvcairn_protocol.errors import LayoutError
from kvcairn_protocol.layout import Kind, Layout, parse_layout
from kvcairn_protocol.prefix import block_keys
from memory_service import MemoryService
from tiny_models import RATIOS, make_config, make_model, make_prompt

UNIT = 128


def fresh(config: Any = None, *, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return DeepseekV4ForCausalLM(config or make_config(RATIOS)).eval()


def test_the_streams_are_those_of_the_cache() -> None:
    layout = layout_of(make_model(), model_id="tiny", block_tokens=512)
    history = [(s.name, s.layer, s.tokens_per_row, s.row_shape) for s in layout.history]
    assert history == [
        ("csa", 2, 4, (16,)), ("csa_index", 2, 4, (8,)), ("hca", 3, 128, (16,)),
        ("csa", 4, 4, (16,)), ("csa_index", 4, 4, (8,)), ("hca", 5, 128, (16,)),
    ]  # fmt: skip
    assert [(s.name, s.layer, s.rows, s.row_shape) for s in layout.windows] == [
        ("window", layer, 127, (16,)) for layer in range(6)
    ]
    assert [(s.name, s.layer, s.rows, s.row_shape) for s in layout.carries] == [
        (f"{name}_{part}", layer, 4, (dim,))
        for layer in (2, 4)
        for name, dim in (("csa_overlap", 16), ("csa_index_overlap", 8))
        for part in ("kv", "gate")
    ]
    assert {stream.dtype for stream in layout.streams} == {"float32"}
    assert (layout.model, layout.chained, layout.layers, layout.unit_tokens) == ("tiny", True, 6, 128)
    assert layout.replay_tokens == 128 * 6 - 5


def test_a_block_of_512_tokens_holds_128_csa_and_4_hca_entries() -> None:
    layout = layout_of(make_model(), model_id="tiny")
    rows = {segment.stream.name: segment.rows for segment in layout.segments(Kind.HISTORY)}
    assert rows == {"csa": 128, "csa_index": 128, "hca": 4}
    assert layout.payload_bytes(Kind.HISTORY) == 2 * 4 * (128 * (16 + 8) + 4 * 16)
    assert layout.payload_bytes(Kind.STATE) == 4 * (6 * 127 * 16 + 2 * 2 * 4 * (16 + 8))
    assert layout.payload_bytes(Kind.WINDOW) == 4 * 6 * (512 - 127) * 16


def test_the_document_is_one_that_any_reader_accepts() -> None:
    layout = layout_of(make_model(RATIOS, torch.bfloat16), block_tokens=UNIT)
    assert parse_layout(layout.canonical) == layout
    assert {stream.dtype for stream in layout.streams} == {"bfloat16"}


@pytest.mark.parametrize(
    ("ratios", "unit", "names"),
    [((0, 4), 4, {"csa", "csa_index"}), ((0, 128), 128, {"hca"}), ((4, 128), 128, {"csa", "csa_index", "hca"})],
)
def test_the_unit_is_that_of_the_layers_there_are(ratios: tuple[int, ...], unit: int, names: set[str]) -> None:
    model = fresh(make_config(ratios))
    layout = layout_of(model, model_id="tiny", block_tokens=4 * unit)
    assert (layout.unit_tokens, {stream.name for stream in layout.history}) == (unit, names)
    with pytest.raises(LayoutError, match=f"multiple of the unit .{unit} tokens.; {unit + 2} is not"):
        layout_of(model, model_id="tiny", block_tokens=unit + 2)
    with pytest.raises(LayoutError, match="0 is not"):
        layout_of(model, model_id="tiny", block_tokens=0)


def test_a_model_without_history_is_refused() -> None:
    with pytest.raises(ModelNotSupported, match="no CSA and no HCA layer"):
        layout_of(fresh(make_config((0, 0))))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_rope_that_looks_at_the_whole_length_is_refused(kind: str) -> None:
    model = fresh()
    model.config.rope_parameters["compress"]["rope_type"] = kind
    with pytest.raises(ModelNotSupported, match=f"RoPE of type {kind} depends on the longest position"):
        layout_of(model)


def test_a_cache_dtype_that_no_layout_knows_is_refused() -> None:
    def widen(_module: Any, _args: Any, options: dict[str, Any], _output: Any) -> None:
        options["cache"].layers[0].keys = options["cache"].layers[0].keys.double()

    model = fresh()
    model.register_forward_hook(widen, with_kwargs=True)
    with pytest.raises(ModelNotSupported, match="keeps float64 in its cache"):
        layout_of(model)


def test_the_weights_are_the_identity_where_no_id_is_given() -> None:
    first, same, other = (layout_of(fresh(seed=seed), block_tokens=UNIT).model for seed in (0, 0, 1))
    assert first == same != other
    assert first.startswith("sha256:")


def test_any_single_weight_or_buffer_counts() -> None:
    model = fresh()
    seen = {layout_of(model, block_tokens=UNIT).model}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    tables = [entry for entry in tensors if entry[0].endswith(("tid2eid", "e_score_correction_bias"))]
    for _, tensor in [*tensors[:3], *tensors[-3:], *tables]:
        with torch.no_grad():
            tensor.view(-1)[-1] += 1
        seen.add(layout_of(model, block_tokens=UNIT).model)
    assert len(seen) == 1 + 6 + len(tables)
    assert len(tables) == 6


def test_a_commit_of_the_hub_is_an_identity_and_a_name_is_not() -> None:
    model = fresh()
    model.config.name_or_path = "lab/tiny"
    assert layout_of(model, block_tokens=UNIT).model.startswith("sha256:")
    model.config._commit_hash = "c0ffee"
    assert layout_of(model, block_tokens=UNIT).model == "lab/tiny@c0ffee"
    assert layout_of(model, model_id="mine@7", block_tokens=UNIT).model == "mine@7"


class TunerLayer(torch.nn.Module):
    """A projection with one adapter and the switches of peft's layers; it adds its weights' sum to the output."""

    def __init__(self, base: torch.nn.Module, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ParameterDict({"style": torch.nn.Parameter(torch.zeros(rank))})
        self.disable_adapters = False
        self.active_adapters, self.merged_adapters = ["style"], list[str]()
        self.scaling = {"style": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base_layer(x)
        return out if self.disable_adapters else out + self.scaling["style"] * self.lora_A["style"].sum()


class Adapted(DeepseekV4ForCausalLM):  # type: ignore[misc]
    """A model with one adapter, as transformers and peft show it."""

    def __init__(self, config: Any, rank: int = 2) -> None:
        super().__init__(config)
        self.peft_config = {"style": {"r": rank}}
        attention = self.model.layers[0].self_attn
        self.tuned = attention.kv_proj = TunerLayer(attention.kv_proj, rank)

    def active_adapters(self) -> list[str]:
        """Also of layers whose adapters are turned off, as in transformers."""
        return self.tuned.active_adapters


def adapted(*, weight: float = 0.0, rank: int = 2, **switches: Any) -> Any:
    torch.manual_seed(0)
    model = Adapted(make_config(RATIOS), rank).eval()
    with torch.no_grad():
        model.tuned.lora_A["style"] += weight
    for name, value in switches.items():
        setattr(model.tuned, name, value)
    return model


def changed(**changes: Any) -> Callable[[], Layout]:
    ratios = changes.pop("ratios", RATIOS)
    return lambda: layout_of(fresh(make_config(ratios, **changes)), model_id="tiny", block_tokens=UNIT)


YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512}

ONE_THING_CHANGED: dict[str, Callable[[], Layout]] = {
    "nothing": changed(),
    "the model id": lambda: layout_of(fresh(), model_id="tiny@2", block_tokens=UNIT),
    "ratios": changed(ratios=(0, 0, 4, 128, 128, 4)),
    "window": changed(sliding_window=64),
    "head dim": changed(head_dim=32),
    "indexer dim": changed(index_head_dim=16),
    "indexer heads": changed(index_n_heads=4),
    "indexer top k": changed(index_topk=32),
    "rope theta": changed(rope_theta=20000.0),
    "compressed rope theta": changed(compress_rope_theta=20000.0),
    "rope dims": changed(partial_rotary_factor=0.5),
    "yarn": changed(rope_parameters=YARN),
    "yarn factor": changed(rope_parameters={**YARN, "factor": 8.0, "original_max_position_embeddings": 1024}),
    "routing": changed(num_experts_per_tok=1),
    "routed scaling": changed(routed_scaling_factor=2.0),
    "clipping": changed(swiglu_limit=5.0),
    "norm epsilon": changed(rms_norm_eps=1e-5),
    "sinkhorn steps": changed(hc_sinkhorn_iters=5),
    "attention": lambda: layout_of(_with(_attn_implementation="other"), model_id="tiny", block_tokens=UNIT),
    "experts": lambda: layout_of(_with(_experts_implementation="batched_mm"), model_id="tiny", block_tokens=UNIT),
    "dtype": lambda: layout_of(fresh().to(torch.bfloat16), model_id="tiny", block_tokens=UNIT),
    "one weight's dtype": lambda: layout_of(_one_weight_in_half(), model_id="tiny", block_tokens=UNIT),
    "block": lambda: layout_of(fresh(), model_id="tiny", block_tokens=2 * UNIT),
    "an adapter": lambda: layout_of(adapted(), model_id="tiny", block_tokens=UNIT),
    "the adapter's weights": lambda: layout_of(adapted(weight=1.0), model_id="tiny", block_tokens=UNIT),
    "the adapter's rank": lambda: layout_of(adapted(rank=3), model_id="tiny", block_tokens=UNIT),
    "the adapter's scale": lambda: layout_of(adapted(scaling={"style": 0.5}), model_id="tiny", block_tokens=UNIT),
    "the adapter merged": lambda: layout_of(adapted(merged_adapters=["style"]), model_id="tiny", block_tokens=UNIT),
    "merged and off": lambda: layout_of(
        adapted(merged_adapters=["style"], disable_adapters=True), model_id="tiny", block_tokens=UNIT
    ),
}


def _with(**private: Any) -> Any:
    ALL_ATTENTION_FUNCTIONS.register("other", eager_attention_forward)
    model = fresh()
    for name, value in private.items():
        setattr(model.config, name, value)
    return model


def _one_weight_in_half() -> Any:
    model = fresh()
    router = model.model.layers[-1].mlp.shared_experts
    router.to(torch.bfloat16)
    router.register_forward_pre_hook(lambda _module, args: (args[0].to(torch.bfloat16),))
    router.register_forward_hook(lambda _module, _args, output: output.to(torch.float32))
    return model


def test_nothing_that_changes_the_bits_is_left_out_of_the_keys() -> None:
    """The weights' own identity is fixed here, so that it cannot stand in for what is changed beside it."""
    tokens = list(range(256))
    found = {name: block_keys(make(), tokens)[0] for name, make in ONE_THING_CHANGED.items()}
    assert len(set(found.values())) == len(found), [
        name for name, key in found.items() if list(found.values()).count(key) > 1
    ]


def test_what_changes_no_bit_changes_no_key(tmp_path: Path) -> None:
    """A model that was saved and loaded again, under another name and with other output options, shares its cache."""
    model = fresh()
    layout = layout_of(model, block_tokens=UNIT)
    model.save_pretrained(tmp_path / "elsewhere")
    again = DeepseekV4ForCausalLM.from_pretrained(tmp_path / "elsewhere").eval()
    again.config.use_cache = False
    again.config.output_attentions = False
    assert layout_of(again, block_tokens=UNIT) == layout


@pytest.mark.parametrize("switches", [{"active_adapters": []}, {"disable_adapters": True}])
def test_an_adapter_without_effect_is_none_and_not_the_one_in_effect(switches: dict[str, Any]) -> None:
    active, idle = adapted(weight=1.0), adapted(weight=1.0, **switches)
    one, other = (layout_of(model, model_id="tiny", block_tokens=UNIT) for model in (active, idle))
    assert one.identity["adapter"].startswith("style sha256:")
    assert (other.identity["adapter"], other.identity["adapter_switches"]) == ("none", "none")


@pytest.mark.parametrize(("name", "value"), [("disable_adapters", True), ("scaling", {"style": 0.5})])
def test_an_adapter_switched_for_one_call_is_prefilled_without_the_cache(name: str, value: Any) -> None:
    """What the base model computes while the adapter is off must not be found by the model with it, nor the reverse."""
    model, service, prompt = adapted(weight=1.0), MemoryService(), make_prompt(300)
    with CachedPrefill(model, service, model_id="tiny", block_tokens=UNIT) as prefill:
        usual = getattr(model.tuned, name)
        setattr(model.tuned, name, value)
        assert prefill(prompt).block_keys == []
        assert prefill.flush()
        assert service.offered == []
        setattr(model.tuned, name, usual)
        prefill(prompt)
        assert prefill(prompt).report.hit_tokens == 256
        setattr(model.tuned, name, value)
        assert prefill(prompt).report.hit_tokens == 0


def test_the_fields_without_effect_are_fields_of_a_config() -> None:
    """A name that no config has would be a typo, and hide nothing by luck alone."""
    assert copy.deepcopy(make_config(RATIOS)).to_dict().keys() >= WITHOUT_EFFECT


def test_the_identity_names_everything_that_it_must() -> None:
    layout = layout_of(fresh(), model_id="tiny", block_tokens=UNIT)
    assert set(layout.identity) == {
        "format", "ratios", "window", "head_dim", "index_head_dim", "index_n_heads", "index_topk", "rope", "rope_dim",
        "dtypes", "attention", "experts", "config", "adapter", "forward_tokens", "matmul", "torch", "transformers",
        "device", "adapter_switches", "autocast", "deterministic", "environment", "cpu",
    }  # fmt: skip
    assert layout.identity["ratios"] == "0,0,4,128,4,128"
    assert layout.identity["forward_tokens"] == "128"
    assert layout.identity["torch"] == torch.__version__
