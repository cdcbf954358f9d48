"""Rotation of heads: tables that depend on nothing but their position, and scores on nothing but the distance."""

import math
from typing import Any

import pytest
import torch

from livescale.services.worker.engine.rope import TABLE_STEP, RopeTable, inverse_frequencies, rope_tables, turn
from livescale.shared.messages.layers import RopeScaling
from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.rotation import inverse_frequencies as declared_frequencies

DIM = 16
CPU = torch.device("cpu")


def config(**fields: Any) -> ModelConfig:
    common: dict[str, Any] = {
        **{"family": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": DIM, "rms_norm_eps": 1e-5},
        **{"rope_theta": 1e4, "max_position_embeddings": 128},
    }
    return ModelConfig(**{**common, **fields})


def table(positions: int = 64, dtype: torch.dtype = torch.float32) -> RopeTable:
    return rope_tables(config(), positions, dtype, CPU)[0]


def turned(heads: torch.Tensor, position: int) -> torch.Tensor:
    made = heads.clone()
    turn(made, *table().at(torch.full((len(heads),), position)))
    return made


def test_a_head_keeps_its_length_and_scores_depend_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    queries, keys = (torch.randn(1, 2, DIM, generator=generator) for _ in range(2))
    assert torch.equal(turned(queries, 0), queries)
    torch.testing.assert_close(turned(queries, 40).norm(dim=-1), queries.norm(dim=-1))
    near, far = ((turned(queries, at + 5) * turned(keys, at)).sum(-1) for at in (3, 50))
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-4)


def test_the_halves_of_a_head_rotate_together_as_complex_numbers() -> None:
    heads = torch.randn(1, 1, DIM, generator=torch.Generator().manual_seed(2))
    made, half = turned(heads, 7), DIM // 2
    for pair, frequency in enumerate(declared_frequencies(1e4, DIM)):
        number = complex(heads[0, 0, pair], heads[0, 0, half + pair])
        expected = number * complex(math.cos(7 * frequency), math.sin(7 * frequency))
        assert made[0, 0, pair].item() == pytest.approx(expected.real, abs=1e-5)
        assert made[0, 0, half + pair].item() == pytest.approx(expected.imag, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_of_different_lengths_differ_nowhere(dtype: torch.dtype) -> None:
    positions = torch.arange(50)
    short, long = table(50, dtype).at(positions), table(TABLE_STEP + 1, dtype).at(positions)
    assert all(torch.equal(one, other) for one, other in zip(short, long, strict=True))


def test_layers_that_rotate_alike_share_a_table() -> None:
    still = LayerKind(frequencies=(0.0,) * (DIM // 2))
    first, second, third = rope_tables(
        config(kinds=[LayerKind(), still], layer_kinds=[0, 1, 0]), 64, torch.float32, CPU
    )
    assert first is third
    assert first is not second
    cosines, sines = second.at(torch.arange(64))
    assert bool((cosines == 1).all())
    assert bool((sines == 0).all())


def test_frequencies_are_those_of_the_declaration() -> None:
    assert inverse_frequencies(config(), LayerKind()).tolist() == list(declared_frequencies(1e4, DIM))


def test_llama_3_keeps_short_waves_stretches_long_ones_and_blends_between() -> None:
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
    kept = inverse_frequencies(config(), LayerKind())
    made = inverse_frequencies(config(rope_scaling=scaling), LayerKind())
    for own, new in zip(kept.tolist(), made.tolist(), strict=True):
        turns = 128 * own / (2 * math.pi)
        if turns > 4:
            assert new == own
        elif turns < 1:
            assert new == pytest.approx(own / 8)
        else:
            assert own / 8 < new < own
