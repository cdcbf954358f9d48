"""Groups of matrices as compressed-tensors describes them."""

from typing import Any

import pytest

from livescale.shared.messages.quantization import Packing
from livescale.shared.model.declaration.checked_keys import CheckedKeys, ModulePackings
from livescale.shared.model.declaration.compressed_tensors import read_compressed_tensors
from livescale.shared.model.declaration.config_file import CheckpointError

INTEGERS = {"num_bits": 8, "type": "int", "strategy": "channel"}
FLOATS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}


def group(weights: dict[str, Any], *targets: str, format: str = "int-quantized") -> dict[str, Any]:
    return {"targets": list(targets), "weights": weights, "format": format}


def read(*groups: dict[str, Any], **more: Any) -> ModulePackings:
    named = {f"group_{index}": one for index, one in enumerate(groups)}
    return read_compressed_tensors(CheckedKeys({"config_groups": named, **more}, "quantization_config"), "bfloat16")


def test_the_first_group_that_means_a_module_packs_it_unless_it_is_ignored() -> None:
    grouped = {"num_bits": 8, "strategy": "group", "group_size": 64}
    found = read(group(INTEGERS, "re:.*gate_proj"), group(grouped, "Linear"), ignore=["lm_head"])
    assert found.packing("model.layers.0.mlp.gate_proj") == Packing(codes="int8", group=0, scales="bfloat16")
    assert found.packing("model.layers.0.mlp.up_proj") == Packing(codes="int8", group=64, scales="bfloat16")
    assert found.packing("lm_head") is None


def test_blocks_of_floats_have_a_scale_for_their_rows_and_inputs() -> None:
    found = read(group(FLOATS, "Linear", format="float-quantized"))
    assert (found.stored, found.scale_rows) == ("plain", 128)
    assert found.packing("model.layers.0.mlp.up_proj") == Packing(codes="fp8", group=128, scales="float32")


@pytest.mark.parametrize(
    ("groups", "more", "problem"),
    [
        ([group(INTEGERS, "Linear")], {"sparsity_config": {"format": "sparse-24"}}, "says that matrices are sparse"),
        ([group({**INTEGERS, "actorder": "group"}, "Linear")], {}, "act-order"),
        ([group(INTEGERS, "a"), group(INTEGERS, "b", format="pack-quantized")], {}, "store matrices unlike each other"),
        ([group({}, "Linear")], {}, "config_groups has no weights"),
        ([group({**INTEGERS, "strategy": "token"}, "Linear")], {}, "strategy is 'token'"),
    ],
)
def test_what_is_not_served_is_refused(groups: list[dict[str, Any]], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read(*groups, **more)
