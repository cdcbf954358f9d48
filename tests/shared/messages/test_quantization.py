"""Which matrices of a model are packed: tables by number, which must not point beyond each other."""

import pytest

from livescale.shared.messages.quantization import Packing, Quantization

INT4, INT8 = (Packing(codes=codes, group=128, scales="float16") for codes in ("int4", "int8"))


def test_layers_without_a_table_of_their_own_are_as_the_first() -> None:
    same = Quantization(stored="awq", packings=[INT4], parts=[{"mlp.up_proj": 0}])
    assert [same.packing(layer, "mlp.up_proj") for layer in (0, 7)] == [INT4, INT4]
    assert same.packing(0, "self_attn.q_proj") is None
    unlike = Quantization(
        stored="awq", packings=[INT4, INT8], parts=[{"mlp.up_proj": 0}, {"mlp.up_proj": 1}, {}], layers=[2, 1, 0]
    )
    assert [unlike.packing(layer, "mlp.up_proj") for layer in range(3)] == [None, INT8, INT4]


def test_a_number_beyond_its_table_is_refused_by_the_field() -> None:
    with pytest.raises(ValueError, match="`layers` name more than `parts` has, 1"):
        Quantization(stored="awq", packings=[INT4], parts=[{}], layers=[0, 1])
    with pytest.raises(ValueError, match="`parts` name more than `packings` has, 1"):
        Quantization(stored="awq", packings=[INT4], parts=[{"mlp.up_proj": 1}])
