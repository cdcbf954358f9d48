"""`quantization_config`: what each method's keys say of which matrices are packed, and how."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.shared.messages.layers import Experts
from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.quantization import read_quantization

MODEL = ModelConfig(
    family="llama",
    vocab_size=100,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=128,
)
MATRICES = {
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
}
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def read(values: dict[str, Any], key: str = "quantization_config", **config: Any) -> Quantization | None:
    return read_quantization(ConfigFile({key: values, **config}), MODEL, lambda name: name.removesuffix(".weight"))


def grouped(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A configuration of compressed-tensors with one group of matrices."""
    group = {"targets": ["Linear"], "weights": {**WEIGHTS, **weights}, "format": "int-quantized"}
    return {"config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


@pytest.mark.parametrize(
    ("values", "stored", "packing", "rows"),
    [
        ({"quant_method": "gptq"}, "gptq", Packing(codes="int4", group=128, scales="float16"), 1),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False, "checkpoint_format": "gptq_v2"},
            "gptq_v2",
            Packing(codes="int8", group=0, scales="float16", zeros=True),
            1,
        ),
        (
            {"quant_method": "awq", "q_group_size": 64},
            "awq",
            Packing(codes="int4", group=64, scales="float16", zeros=True),
            1,
        ),
        ({"quant_method": "fp8"}, "fp8", Packing(codes="fp8", group=0, scales="float32"), 0),
        (
            {"quant_method": "fp8", "weight_block_size": [16, 32]},
            "fp8",
            Packing(codes="fp8", group=32, scales="float32"),
            16,
        ),
        (grouped({}), "plain", Packing(codes="int8", group=0, scales="bfloat16"), 1),
        (
            grouped({"group_size": 32, "strategy": "group"}),
            "plain",
            Packing(codes="int8", group=32, scales="bfloat16"),
            1,
        ),
        (
            grouped({"type": "float", "strategy": "tensor"}),
            "plain",
            Packing(codes="fp8", group=0, scales="float32"),
            0,
        ),
    ],
)
def test_all_matrices_of_layers_are_packed_as_the_method_says(
    values: dict[str, Any], stored: str, packing: Packing, rows: int
) -> None:
    made = read(values)
    assert made is not None
    assert (made.stored, made.packings, made.scale_rows) == (stored, [packing], rows)
    assert (made.layers, [set(part) for part in made.parts]) == ([], [MATRICES])


def test_a_file_without_the_key_and_one_that_leaves_out_everything_are_not_quantized() -> None:
    assert read_quantization(ConfigFile({}), MODEL, str) is None
    assert read(grouped({}, ignore=["Linear"])) is None


def test_the_older_key_says_the_same() -> None:
    assert read(grouped({}), "compression_config") == read(grouped({}))


@pytest.mark.parametrize(
    "values",
    [
        {"quant_method": "awq", "modules_to_not_convert": ["model.layers.0.", "mlp"]},
        {"quant_method": "fp8", "ignored_layers": ["model.layers.0", "model.layers.1.mlp"]},
        {"quant_method": "fp8", "ignored_layers": ["model.layers.0", r"re:.*\.mlp\..*"]},
        grouped({}, ignore=["lm_head", "model.layers.0", "re:.*mlp.*"]),
        {"quant_method": "gptq", "dynamic": {r"-:model\.layers\.0\.": {}, "-:.*mlp": {}}},
    ],
)
def test_modules_that_are_left_out_are_not_packed(values: dict[str, Any]) -> None:
    made = read(values)
    assert made is not None
    assert made.packing(0, "self_attn.q_proj") is None
    assert made.packing(1, "mlp.up_proj") is None
    assert made.packing(1, "self_attn.q_proj") == made.packings[0]


def test_awq_leaves_out_what_contains_a_name_as_those_who_write_it_do() -> None:
    made = read({"quant_method": "awq", "modules_to_not_convert": ["gate"]})
    assert made is not None
    assert [set(part) for part in made.parts] == [MATRICES - {"mlp.gate_proj"}]


def test_gptq_may_name_the_modules_that_are_quantized() -> None:
    made = read({"quant_method": "gptq", "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]]})
    assert made is not None
    assert [set(part) for part in made.parts] == [{"self_attn.q_proj", "mlp.up_proj"}]


def test_a_name_means_a_module_and_what_it_is_made_of_but_no_other_that_begins_alike() -> None:
    made = read({"quant_method": "fp8", "ignored_layers": ["model.layers.1"]})
    assert made is not None
    assert made.packing(0, "mlp.up_proj") is not None
    assert made.packing(1, "mlp.up_proj") is None
    alike = read({"quant_method": "fp8", "ignored_layers": ["model.layers.1.mlp.up"]})
    assert alike is not None
    assert alike.packing(1, "mlp.up_proj") is not None


@pytest.mark.parametrize("values", [{"quant_method": "fp8"}, {"quant_method": "gptq"}, {"quant_method": "awq"}])
def test_experts_are_packed_and_routers_are_not_though_no_file_says_so(values: dict[str, Any]) -> None:
    experts = Experts(count=4, chosen=2, features=16, shared_features=16, shared_gate=True)
    model = replace(MODEL, kinds=[LayerKind(experts=True)], experts=experts)
    named = {"quantization_config": values}
    made = read_quantization(ConfigFile(named), model, lambda name: name.removesuffix(".weight"))
    assert made is not None
    stacks = {f"mlp.{kind}.{part}_proj" for kind in ("experts", "shared_experts") for part in ("gate", "up", "down")}
    assert {*made.parts[0]} == {*(f"self_attn.{part}_proj" for part in "qkvo"), *stacks}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (grouped({"actorder": "group"}), "weights: actorder is group"),
        (grouped({"strategy": "token"}), "strategy is 'token'; supported are tensor, channel, group and block"),
        (grouped({"num_bits": 3}), "bits is 3; supported are 4 and 8"),
        (grouped({"num_bits": 4, "type": "float"}), "num_bits is 4 of floats"),
        (grouped({"strategy": "block"}), "block_structure must be two numbers"),
        (grouped({}, config_groups={}), "config_groups has no weights"),
        (grouped({}, ignore=["re:["]), r"the pattern '\[' is none"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2', must be e4m3"),
        ({"quant_method": "fp8", "weight_block_size": [16]}, "weight_block_size must be two numbers"),
        ({"quant_method": "gptq", "bits": "four"}, "bits is 'four', must be a whole number"),
    ],
)
def test_what_is_not_served_is_refused_by_name(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read(values)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=4,
)
KEYS = ("bits", "group_size", "desc_act", "sym", "version", "fmt", "weight_block_size", "ignore", "config_groups")


@given(st.sampled_from(["gptq", "awq", "fp8", "compressed-tensors"]), st.dictionaries(st.sampled_from(KEYS), JSON))
@settings(max_examples=50)
def test_any_values_are_read_or_refused(method: str, values: dict[str, Any]) -> None:
    with suppress(CheckpointError):
        read({"quant_method": method, **values})
