"""Rotary position embedding, as checkpoints describe it in either spelling."""

from copy import deepcopy
from itertools import pairwise
from math import log
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.rotation import (
    Rotation,
    RotationReader,
    inverse_frequencies,
    pair_order,
    rounded,
)

HEAD = 16


def read(config: dict[str, Any], partial: float | None = None, positions: int = 4_096) -> Rotation:
    return RotationReader(ConfigFile(config), HEAD, positions, partial=partial).read()


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8_192,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1_024},
    ],
)
def test_both_spellings_say_the_same(scaling: dict[str, Any]) -> None:
    older = {
        "rope_theta": 5e5,
        "rope_scaling": {"type" if key == "rope_type" else key: scaling[key] for key in scaling},
    }
    newer = {"rope_parameters": {"rope_theta": 5e5, **scaling}}
    assert read(older) == read({"rope_theta": 5e5, "rope_scaling": scaling}) == read(newer)
    assert read(newer) != read({"rope_theta": 5e5})


def test_without_a_word_heads_rotate_whole_by_the_architectures_theta() -> None:
    assert read({}) == Rotation(10_000.0)
    assert read({"rope_theta": 1e6}) == Rotation(1e6)
    assert Rotation(1e6).all_frequencies(HEAD) == inverse_frequencies(1e6, HEAD)


@given(st.floats(1.0, 1e8), st.sampled_from([2, 8, 64, 128]))
def test_the_first_pair_turns_a_radian_a_position_and_each_further_one_is_slower(theta: float, dim: int) -> None:
    frequencies = inverse_frequencies(theta, dim)
    assert (len(frequencies), frequencies[0]) == (dim // 2, 1.0)
    assert all(one >= other for one, other in pairwise(frequencies))
    assert all(rounded(one) == one for one in frequencies)


@given(st.floats(1.0, 100.0))
def test_linear_scaling_makes_all_pairs_slower_by_its_factor(factor: float) -> None:
    made = read({"rope_scaling": {"rope_type": "linear", "factor": factor}}).frequencies
    assert made == tuple(rounded(one / factor) for one in inverse_frequencies(10_000.0, HEAD))


@given(st.floats(1.0, 64.0), st.sampled_from([512, 4_096]))
def test_yarn_keeps_fast_pairs_stretches_slow_ones_and_blends_between(factor: float, original: int) -> None:
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    made, kept = read({"rope_scaling": scaling}), inverse_frequencies(10_000.0, HEAD)
    assert made.frequencies is not None
    assert made.frequencies[0] == kept[0]
    assert made.frequencies[-1] == pytest.approx(kept[-1] / factor)
    stretched = [own / new for own, new in zip(kept, made.frequencies, strict=True)]
    assert all(1 - 1e-6 <= one <= factor * (1 + 1e-6) for one in stretched)
    assert all(one <= other * (1 + 1e-6) for one, other in pairwise(stretched))
    assert made.score_factor >= 1.0


def test_a_part_of_a_head_rotates_only_where_the_architecture_has_that() -> None:
    made = read({"partial_rotary_factor": 0.5}, partial=1.0)
    assert made.rotary_dim == HEAD // 2
    assert made.frequencies == (*inverse_frequencies(10_000.0, HEAD // 2), *[0.0] * (HEAD // 4))
    with pytest.raises(CheckpointError, match="this architecture rotates whole heads"):
        read({"partial_rotary_factor": 0.5})


def test_layers_of_one_type_have_their_own_rotation() -> None:
    types = {"rope_parameters": {"full": {"rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}}
    reader = RotationReader(ConfigFile(types), HEAD, 4_096)
    assert (reader.read_of("full").theta, reader.read_of("sliding").theta) == (1e6, 1e4)
    with pytest.raises(CheckpointError, match="differ by layer"):
        reader.read()
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    reader = RotationReader(ConfigFile(older), HEAD, 4_096)
    assert reader.read_of("sliding", "rope_local_base_freq", is_scaled=False) == Rotation(1e4)
    assert reader.read_of("full").frequencies is not None


@pytest.mark.parametrize("model_type", ["olmo3", "gemma3_text"])
@pytest.mark.parametrize("theta", [{}, {"rope_theta": 5e4}])
def test_what_stands_beside_the_types_of_layers_counts_as_little_as_for_transformers(
    model_type: str, theta: dict[str, Any]
) -> None:
    flat = {**theta, "rope_parameters": {"rope_type": "linear", "rope_theta": 7e3, "factor": 3.0}}
    theirs = transformers.AutoConfig.for_model(model_type, **deepcopy(flat)).rope_parameters["full_attention"]
    reader = RotationReader(ConfigFile(flat), HEAD, 4_096, {"olmo3": 5e5, "gemma3_text": 1e6}[model_type])
    assert theirs["rope_type"] == "default"
    assert reader.read_of("full_attention") == Rotation(theirs["rope_theta"])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"rope_theta": 0.5}, "rope_theta is 0.5, must be at least 1"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported; supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is 'None', must be a number above zero"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "factor is '-1.0', must be a number above zero"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 RoPE scaling: .*low_freq_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1.0}, "'yarn' with rope_theta 1"),
    ],
)
def test_what_is_not_served_is_refused_by_name(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read(config)


@given(st.sampled_from([(8, 0), (8, 4), (12, 4), (16, 8), (16, 16)]), st.booleans())
def test_numbers_of_a_pair_come_to_lie_half_a_head_apart(dims: tuple[int, int], interleaved: bool) -> None:
    head_dim, rotary_dim = dims
    order, turning = pair_order(head_dim, rotary_dim, interleaved), rotary_dim or head_dim
    assert sorted(order) == list(range(head_dim))
    for pair in range(turning // 2):
        apart = order[head_dim // 2 + pair] - order[pair]
        assert apart == (1 if interleaved else turning // 2)
    assert not interleaved or order[: turning // 2] == list(range(0, turning, 2))


LONG = {"short_factor": [1.0] * 8, "long_factor": [1.0 + pair for pair in range(8)], "rope_type": "longrope"}


def test_longrope_has_two_sets_of_factors() -> None:
    made = read({"rope_scaling": LONG, "original_max_position_embeddings": 1_024}, positions=4_096)
    kept = inverse_frequencies(10_000.0, HEAD)
    assert (made.short_frequencies, made.short_positions) == (kept, 1_024)
    assert made.frequencies is not None
    assert made.frequencies == pytest.approx([one / (1 + pair) for pair, one in enumerate(kept)])
    assert made.turning_scale**2 == pytest.approx(1 + log(4) / log(1_024))
    assert read({"rope_scaling": LONG | {"type": "su", "rope_type": "su"}}).short_frequencies == kept


@pytest.mark.parametrize(
    ("scaling", "problem"),
    [
        (LONG | {"short_factor": [1.0] * 7}, "short_factor must be a list of 8 numbers, one for each pair"),
        (LONG | {"long_factor": 4.0}, "long_factor must be a list of 8 numbers"),
        (LONG | {"long_factor": ["4"] * 8}, "long_factor is '4', must be a number"),
        (LONG | {"long_factor": [0.01] * 8}, "long_factor has 0.01, must be at least 0.1"),
        (LONG | {"rope_type": "yarn", "factor": 4.0}, "'long_factor' is not known of rope_type 'yarn'"),
        ({"rope_type": "linear", "factor": 4.0, "twist": 1}, "'twist' is not known of rope_type 'linear'"),
    ],
)
def test_what_a_rotation_does_not_know_is_refused_by_name(scaling: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read({"rope_scaling": scaling})
