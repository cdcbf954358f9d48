from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.model.block_layout import block_layouts, block_shapes, shard_layouts
from livescale.shared.model.sharding import ShardSlice, check_shards, find_shard_slice, shard_config, vocabulary
from livescale.shared.model.tensors import model_parameters


def config(**fields: Any) -> ModelConfig:
    defaults = {
        "family": "qwen2",
        "vocab_size": 1_003,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "max_position_embeddings": 128,
        "attention_bias": True,
    }
    return ModelConfig(**{**defaults, **fields})


def slice_of(name: str, model: ModelConfig, shard: int, shards: int) -> ShardSlice | None:
    """The slice that a rank has of the tensor with this ending."""
    tensors = [tensor for block in model_parameters(model).values() for tensor in block]
    cut = next(tensor.cut for tensor in tensors if tensor.name.endswith(name))
    return find_shard_slice(cut, model, shard, shards)


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    """A model of any shape, and a number of ranks that it can be cut for."""
    shards = draw(st.sampled_from((2, 3, 4, 8)))
    key_heads = draw(st.sampled_from([count for count in range(1, 25) if count % shards == 0 or shards % count == 0]))
    groups = [count for count in range(1, 9) if key_heads * count % shards == 0]
    made = config(
        vocab_size=draw(st.integers(64, 2_000)),
        intermediate_size=shards * draw(st.integers(1, 9)),
        num_key_value_heads=key_heads,
        num_attention_heads=key_heads * draw(st.sampled_from(groups or [shards])),
        tie_word_embeddings=draw(st.booleans()),
    )
    return made, shards


@given(cut_models())
def test_what_the_ranks_have_together_is_every_tensor(model: tuple[ModelConfig, int]) -> None:
    made, shards = model
    check_shards(made, shards)
    for name, shape in chain.from_iterable(block.items() for block in block_shapes(made).values()):
        cuts = [slice_of(name, made, shard, shards) for shard in range(shards)]
        parts = [cut for cut in cuts if cut is not None]
        assert len(parts) == ("norm" not in name) * shards
        if parts:
            size = shape[parts[0].dimension]
            assert {index for cut in parts for index in range(cut.start, cut.stop)} == set(range(size))
            replicated = made.num_key_value_heads < shards and ("k_proj" in name or "v_proj" in name)
            assert sum(cut.stop - cut.start for cut in parts) == size * (
                shards // made.num_key_value_heads if replicated else 1
            )


@given(cut_models())
def test_what_a_rank_has_of_a_tensor_is_what_its_blocks_have_room_for(model: tuple[ModelConfig, int]) -> None:
    made, shards = model
    whole = {name: shape for block in block_shapes(made).values() for name, shape in block.items()}
    for shard in range(shards):
        for block in shard_layouts(made, "bfloat16", shard, shards):
            for tensor in block.tensors:
                cut, shape = slice_of(tensor.name, made, shard, shards), list(whole[tensor.name])
                if cut is not None:
                    shape[cut.dimension] = cut.stop - cut.start
                assert tensor.shape == shape


@given(cut_models())
def test_a_ranks_queries_attend_to_the_keys_that_it_has(model: tuple[ModelConfig, int]) -> None:
    made, shards = model
    group = made.num_attention_heads // made.num_key_value_heads
    for shard in range(shards):
        own, dim = shard_config(made, shard, shards), made.head_dim
        queries = slice_of("self_attn.q_proj.weight", made, shard, shards)
        keys = slice_of("self_attn.k_proj.bias", made, shard, shards)
        assert queries is not None
        assert keys is not None
        for head in range(own.num_attention_heads):
            wanted = (queries.start // dim + head) // group
            assert keys.start // dim + head // (own.num_attention_heads // own.num_key_value_heads) == wanted


def test_the_last_rank_may_have_fewer_tokens_than_the_others() -> None:
    assert [len(vocabulary(config(vocab_size=1_003), shard, 4)) for shard in range(4)] == [251, 251, 251, 250]


def test_one_rank_has_the_model_as_it_is() -> None:
    assert shard_config(config(), 0, 1) == config()
    assert slice_of("lm_head.weight", config(), 0, 1) is None


@pytest.mark.parametrize(
    ("fields", "shards", "said"),
    [
        ({}, 3, "does not divide num_attention_heads, 8; this model can have 1, 2, 4, 8"),
        ({"num_key_value_heads": 8}, 16, "does not divide num_attention_heads, 8; this model can have 1, 2, 4, 8"),
        ({"num_key_value_heads": 3, "num_attention_heads": 12}, 4, "neither divides num_key_value_heads, 3"),
        ({"intermediate_size": 99}, 2, "does not divide intermediate_size, 99; this model can have 1"),
        ({"vocab_size": 2}, 4, "is too many for a vocabulary of 2; this model can have 1, 2"),
    ],
)
def test_a_number_that_does_not_fit_is_refused_with_those_that_do(
    fields: dict[str, int], shards: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check_shards(config(**fields), shards)


def test_a_model_for_two_ranks_is_the_blocks_of_one_and_then_of_the_other() -> None:
    layouts = block_layouts(config(), "bfloat16", 2)
    blocks = [layout.block(checksum=0) for layout in layouts]
    manifest = Manifest(version="v", config=config(), dtype="bfloat16", shards=2, blocks=blocks)
    assert [block.index for block in blocks] == list(range(8))
    for shard in (0, 1):
        own = manifest.of_shard(shard)
        assert own.shard == shard
        assert own.blocks == [layout.block(checksum=0) for layout in shard_layouts(config(), "bfloat16", shard, 2)]
    assert manifest.of_shard(0).held_as != manifest.of_shard(1).held_as
