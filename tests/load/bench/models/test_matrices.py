"""The quantized matrices of a checkpoint, taken out of it for `livescale bench models`."""

from pathlib import Path

from livescale.load.bench.models.matrices import packed_matrices
from livescale.load.make_model import make_model
from livescale.shared.model.checkpoint import load_model_config


def test_all_matrices_of_layers_are_taken_and_nothing_else(tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", "qwen2", "tiny", 0, quantized="int4")
    config = load_model_config(made)
    taken = list(packed_matrices(made))
    assert len(taken) == 7 * config.num_hidden_layers
    assert {(one.outputs, one.inputs) for one in taken} >= {(config.intermediate_size, config.hidden_size)}
    assert all(one.nbytes < one.outputs * one.inputs for one in taken)
