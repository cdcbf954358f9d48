"""Which modules names, ends and patterns mean."""

import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from livescale.shared.model.declaration.module_patterns import ends_with, matched

GATE = "model.layers.0.mlp.gate_proj"


def test_a_name_means_the_module_its_parts_and_no_other_that_ends_alike() -> None:
    finds = matched(["mlp.gate_proj", "model.layers.1"])
    assert finds(GATE)
    assert finds("model.layers.1.self_attn.q_proj")
    assert not finds("model.layers.0.mlp.up_gate_proj")
    assert not finds("model.layers.10.self_attn.q_proj")


def test_the_class_of_all_of_them_means_all_of_them() -> None:
    assert matched(["Linear"])("lm_head")


def test_a_pattern_is_matched_from_the_beginning_of_the_name() -> None:
    finds = matched([r"re:.*gate_proj$", r"re:lm_head"])
    assert finds(GATE)
    assert finds("lm_head")
    assert not finds("model.lm_head")


def test_an_end_means_modules_of_layers_alone() -> None:
    finds = ends_with(["gate_proj"])
    assert finds(GATE)
    assert not finds("encoder.gate_proj")


@pytest.mark.parametrize("pattern", ["a" * 201, "(a+)+b", "a*b*c*d*e*", "(a*){9}", "[a"])
def test_a_pattern_that_might_take_for_ever_or_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match="name modules instead"):
        matched([f"re:{pattern}"])
