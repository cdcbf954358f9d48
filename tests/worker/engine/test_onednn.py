"""Matrices that arrive in oneDNN's layout: used where they lie, with the bits of those that are laid out here."""

import pytest
import torch

from services.worker.batch import Piece
from services.worker.engine import onednn
from services.worker.engine.engine import Engine
from services.worker.engine.kernels.contract import Kernels
from services.worker.engine.onednn import describe_panels, lay_out
from services.worker.engine.parameters import block_tensors
from shared.panels import to_panels
from tests.worker.engine.models import KERNELS, PANEL_CONFIGS, checkpointed, needs_kernels

TOKENS = tuple(range(3, 103))
KINDS = [pytest.param(None, id="torch"), pytest.param(KERNELS, id="compiled", marks=needs_kernels)]


def logits(engine: Engine) -> torch.Tensor:
    """Of a prompt, and of one token after it."""
    made = []
    for piece in (Piece("a", TOKENS, 0, range(8), decode=False), Piece("a", (7,), len(TOKENS), range(8), decode=True)):
        rows = engine.rows([piece])
        made.append(engine.head(engine.layers(0, 2, engine.embed(rows), rows)))
    return torch.cat(made)


@pytest.mark.parametrize("kernels", KINDS)
@pytest.mark.parametrize("name", PANEL_CONFIGS)
def test_the_layout_of_a_model_changes_no_bit(name: str, kernels: Kernels | None) -> None:
    plain, panels = (checkpointed(name, "bfloat16", layout=layout) for layout in ("plain", "panels"))
    assert panels.manifest.version != plain.manifest.version
    assert panels.manifest.size_bytes == plain.manifest.size_bytes
    assert torch.equal(logits(panels.engine(kernels=kernels)), logits(plain.engine(kernels=kernels)))


@pytest.mark.parametrize("name", PANEL_CONFIGS)
def test_where_onednn_wants_another_layout_panels_are_laid_out_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = logits(checkpointed(name, "bfloat16").engine())
    monkeypatch.setattr(onednn, "describe_panels", lambda outputs, inputs: None)
    assert torch.equal(logits(checkpointed(name, "bfloat16", layout="panels").engine()), right)


@needs_kernels  # so its oneDNN knows panels
def test_what_lies_in_panels_is_used_where_it_lies() -> None:
    made = checkpointed("llama-panels-untied", "bfloat16", layout="panels")
    tensors = block_tensors(made.manifest.blocks[1], memoryview(made.blocks[1]), "bfloat16")
    gate, up = (tensors[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    both = lay_out([gate, up])
    assert both.shape == (384, 128)
    assert torch.ops.mkldnn.data_ptr(both) == gate.data_ptr()
    assert torch.ops.mkldnn.data_ptr(lay_out([up, gate])) != up.data_ptr()  # one after the other nowhere


@pytest.mark.parametrize("shape", [(64, 32), (192, 96), (1024, 1536)])
def test_onednn_is_believed_only_where_its_own_matrix_lies_so(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape).bfloat16()
    rows = torch.randn(5, shape[1]).bfloat16()
    multiply = torch.ops.mkldnn._linear_pointwise.default
    right = multiply(rows, lay_out([matrix]), None, "none", [], "")
    panels = to_panels(matrix)
    assert torch.equal(multiply(rows, lay_out([panels]), None, "none", [], ""), right)
    if KERNELS is not None:
        assert describe_panels(*shape) is not None
