"""The tensors that hold parameters, from where each parameter lies."""

from livescale.shared.model.declaration.source import Source


def test_rows_of_several_parameters_add_up_in_one_tensor() -> None:
    first, second = Source("qkv", 0, 6), Source("qkv", 6, 2)
    assert second.stored_shape([2, 5], first.stored_shape([6, 5], None)) == [8, 5]
    assert first.stored_shape([6, 5], second.stored_shape([2, 5], None)) == [8, 5]


def test_outputs_of_a_transposed_matrix_are_columns() -> None:
    first, second = Source("c_attn", 0, 6, transposed=True), Source("c_attn", 6, 2, transposed=True)
    assert second.stored_shape([2, 5], first.stored_shape([6, 5], None)) == [5, 8]


def test_a_bias_has_one_dimension() -> None:
    assert Source("bias", 3, 4).stored_shape([4], [3]) == [7]
