"""The tensors of a model, from its configuration alone, and where a checkpoint has each parameter."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.messages.layers import Experts
from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.tensors import EMBEDDING, HEAD, SCORE, Parameter, Source, model_parameters


def config(**fields: Any) -> ModelConfig:
    common: dict[str, Any] = {
        **{"family": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5},
        **{"rope_theta": 1e4, "max_position_embeddings": 128},
    }
    return ModelConfig(**{**common, **fields})


def named(model: ModelConfig) -> dict[str, Parameter]:
    return {one.name: one for block in model_parameters(model).values() for one in block}


def in_layer(model: ModelConfig, layer: int = 0) -> set[str]:
    return {one.name.removeprefix(f"model.layers.{layer}.") for one in model_parameters(model)[f"layer-{layer}"]}


KINDS = st.builds(
    LayerKind,
    head_norm=st.sampled_from(["none", "head", "row"]),
    norms_before=st.booleans(),
    norms_after=st.booleans(),
    norms_sum=st.booleans(),
    parallel=st.booleans(),
    gated=st.booleans(),
    output_bias=st.booleans(),
    mlp_bias=st.booleans(),
)


@given(KINDS, st.integers(1, 3), st.booleans())
def test_a_model_is_an_input_its_layers_and_a_head_and_every_name_is_there_once(
    kind: LayerKind, layers: int, bias: bool
) -> None:
    blocks = model_parameters(config(kinds=[kind], num_hidden_layers=layers, attention_bias=bias))
    assert list(blocks) == ["embedding", *(f"layer-{layer}" for layer in range(layers)), "head"]
    names = [one.name for block in blocks.values() for one in block]
    assert len(set(names)) == len(names)
    for layer in range(layers):
        assert all(one.name.startswith(f"model.layers.{layer}.") for one in blocks[f"layer-{layer}"])


@given(KINDS)
def test_matrices_with_the_same_input_are_adjacent(kind: LayerKind) -> None:
    names = [one.name for one in model_parameters(config(kinds=[kind]))["layer-0"]]
    q = names.index("model.layers.0.self_attn.q_proj.weight")
    assert [name.split(".")[4] for name in names[q : q + 3]] == ["q_proj", "k_proj", "v_proj"]
    if kind.gated:
        gate = names.index("model.layers.0.mlp.gate_proj.weight")
        assert names[gate + 1] == "model.layers.0.mlp.up_proj.weight"


def test_shapes_follow_from_heads_and_features() -> None:
    found = named(config())
    shapes = {name.removeprefix("model.layers.0."): one.shape for name, one in found.items()}
    assert shapes["self_attn.q_proj.weight"] == [64, 32]
    assert shapes["self_attn.k_proj.weight"] == shapes["self_attn.v_proj.weight"] == [32, 32]
    assert shapes["self_attn.o_proj.weight"] == [32, 64]
    assert shapes["mlp.up_proj.weight"] == [64, 32]
    assert shapes["mlp.down_proj.weight"] == [32, 64]
    assert found[EMBEDDING].shape == found[HEAD].shape == [100, 32]


@given(KINDS)
def test_every_matrix_is_cut_over_ranks_and_no_norm_of_whole_rows_is(kind: LayerKind) -> None:
    for one in model_parameters(config(kinds=[kind], attention_bias=True))["layer-0"]:
        if len(one.shape) == 2:
            assert one.cut is not None
        elif "layernorm" in one.name:
            assert one.cut is None


@pytest.mark.parametrize(
    ("fields", "there", "not_there"),
    [
        ({}, {HEAD}, {SCORE, "pooler.weight"}),
        ({"tie_word_embeddings": True}, set(), {HEAD}),
        ({"pooling": "last"}, set(), {HEAD, SCORE}),
        ({"pooling": "cls", "labels": 1, "pooler": True}, {SCORE, "pooler.weight"}, {HEAD, "score.bias"}),
        (
            {"pooling": "cls", "labels": 1, "encodes": True, "token_types": 2},
            {"score.bias", "model.embed_positions.weight", "model.norm.bias"},
            {HEAD},
        ),
    ],
)
def test_a_head_is_that_of_what_the_model_is_for(fields: dict[str, Any], there: set[str], not_there: set[str]) -> None:
    names = set(named(config(**fields)))
    assert there <= names
    assert not not_there & names


def test_the_last_sum_s_norm_is_the_one_before_the_head() -> None:
    model = config(kinds=[LayerKind(norms_sum=True)])
    assert "mlp.sum_layernorm.weight" in in_layer(model, 0)
    assert "mlp.sum_layernorm.weight" not in in_layer(model, 1)
    assert "model.norm.weight" in named(model)


def test_experts_are_one_tensor_of_each_kind() -> None:
    experts = Experts(count=6, chosen=2, features=24)
    found = named(config(kinds=[LayerKind(experts=True)], experts=experts))
    assert found["model.layers.0.mlp.gate.weight"].shape == [6, 32]
    assert found["model.layers.0.mlp.experts.up_proj.weight"].shape == [6, 24, 32]
    assert found["model.layers.0.mlp.experts.down_proj.weight"].shape == [6, 32, 24]
    assert "model.layers.0.mlp.up_proj.weight" not in found


def test_rows_of_several_parameters_add_up_in_one_tensor() -> None:
    first, second = Source("qkv", 0, 6), Source("qkv", 6, 2)
    assert second.stored_shape([2, 5], first.stored_shape([6, 5], None)) == [8, 5]
    assert first.stored_shape([6, 5], second.stored_shape([2, 5], None)) == [8, 5]


def test_outputs_of_a_transposed_matrix_are_columns() -> None:
    first, second = Source("c_attn", 0, 6, transposed=True), Source("c_attn", 6, 2, transposed=True)
    assert second.stored_shape([2, 5], first.stored_shape([6, 5], None)) == [5, 8]


def test_a_bias_has_one_dimension() -> None:
    assert Source("bias", 3, 4).stored_shape([4], [3]) == [7]
