"""Parameters of made checkpoints: of a size that makes greedy output vary, whatever a checkpoint calls them."""

import pytest
import torch
from safetensors.torch import load_file

from livescale.load.random_parameters import BIAS_STD, MATRIX_GAIN, TIED_EMBEDDING_STD, RandomParameters
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import tiny_checkpoint

HIDDEN, FEATURES = 192, 320


@pytest.mark.parametrize(
    ("name", "shape", "mean", "std"),
    [
        ("transformer.wte.weight", (1_021, HIDDEN), 0.0, TIED_EMBEDDING_STD),
        ("transformer.wpe.weight", (4_096, HIDDEN), 0.0, TIED_EMBEDDING_STD),
        ("transformer.h.0.ln_1.weight", (HIDDEN,), 1.0, 0.05),
        ("transformer.h.0.ln_1.bias", (HIDDEN,), 0.0, BIAS_STD),
        ("transformer.h.0.mlp.c_fc.weight", (HIDDEN, FEATURES), 0.0, MATRIX_GAIN / HIDDEN**0.5),
        ("transformer.h.0.mlp.c_proj.weight", (FEATURES, HIDDEN), 0.0, MATRIX_GAIN / FEATURES**0.5),
    ],
)
def test_what_a_tensor_is_for_decides_its_size(name: str, shape: tuple[int, ...], mean: float, std: float) -> None:
    made = RandomParameters(load_model_config(tiny_checkpoint("gpt2")), 7).draw(name, torch.Size(shape)).float()
    assert made.mean().item() == pytest.approx(mean, abs=std * 0.3)
    assert made.std().item() == pytest.approx(std, rel=0.2)


def test_a_tensor_depends_on_seed_and_name_alone() -> None:
    directory, name = tiny_checkpoint("qwen2"), "model.norm.weight"
    drawn = [RandomParameters(load_model_config(directory), seed).draw(name, torch.Size([HIDDEN])) for seed in (7, 8)]
    assert torch.equal(drawn[0], load_file(directory / "model.safetensors")[name])
    assert not torch.equal(drawn[0], drawn[1])
