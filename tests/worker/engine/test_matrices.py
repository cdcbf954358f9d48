"""Matrices that arrive in panels: every variant uses them where they lie, with the bits that it makes of others."""

import pytest
import torch

from livescale.services.host.conversion import to_panels
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.matrices import CompiledLinear, bytes_of, laid_out_matrices, shapes_of
from livescale.services.worker.engine.parameters import TorchLinear, block_tensors, multiply_panels
from livescale.services.worker.scheduling.batch import ScheduledChunk
from tests.worker.engine.configs import PANEL_CONFIGS, PANELS_OF_EACH
from tests.worker.engine.models import KERNELS, Kind, checkpointed, kind, needs_kernels
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve, strays

TOKENS = tuple(range(3, 103))
COMPILED = [kind(variant, "bfloat16") for variant in ("amx", "avx512_bf16", "portable", "amx-emulated")]


def in_panels(matrix: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(to_panels(matrix.view(torch.uint16).numpy())).view(matrix.dtype)


def logits(engine: TorchEngine, layers: int) -> torch.Tensor:
    """The logits of a prompt, and of one token after it."""
    made = []
    for chunk in (
        ScheduledChunk("a", TOKENS, 0, range(8), decode=False),
        ScheduledChunk("a", (7,), len(TOKENS), range(8), decode=True),
    ):
        rows = engine.rows([chunk])
        made.append(engine.head(engine.layers(0, layers, engine.embed(rows), rows)))
    return torch.cat(made)


@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("name", PANEL_CONFIGS | PANELS_OF_EACH)
def test_the_layout_of_a_model_changes_no_bit(name: str, how: Kind) -> None:
    plain, panels = (checkpointed(name, "bfloat16", layout=layout) for layout in ("plain", "panels"))
    assert panels.manifest.version != plain.manifest.version
    assert panels.manifest.size_bytes == plain.manifest.size_bytes
    layers = plain.manifest.config.num_hidden_layers
    made, right = (logits(one.engine(kernels=how.kernels), layers) for one in (panels, plain))
    assert torch.equal(made, right)


@pytest.mark.parametrize("name", PANEL_CONFIGS | PANELS_OF_EACH)
def test_torch_computes_with_panels_to_the_precision_of_bfloat16(name: str) -> None:
    prompts = {str(length): random_prompt(length, length) for length in (5, 60, 100, 129, 250)}
    engine = checkpointed(name, "bfloat16", layout="panels").engine()
    served = serve(engine, [(0, submit(key, prompt, max_tokens=12)) for key, prompt in prompts.items()])
    ours, theirs = strays(name, prompts, served)
    assert ours <= 1.5 * theirs


@needs_kernels
def test_what_lies_in_panels_is_used_where_it_lies() -> None:
    assert KERNELS is not None
    made = checkpointed("qwen2-panels-tied", "bfloat16", layout="panels")
    tensors = block_tensors(made.manifest.blocks[1], memoryview(made.blocks[1]), "bfloat16")
    prefix = "model.layers.0.self_attn"
    linear = CompiledLinear(KERNELS, tensors, *(f"{prefix}.{name}_proj" for name in "qkv"))
    addresses = [tensors[f"{prefix}.{name}_proj.weight"].data_ptr() for name in "qkv"]
    assert linear._struct[3] == addresses[0]
    # Keys and values have half as many outputs as a panel, so that they come row by row.
    assert tensors[f"{prefix}.k_proj.weight"].dim() == 2
    assert linear._struct[6] not in addresses
    assert linear._struct[9] not in addresses


def test_which_matrices_do_not_come_in_panels_is_known_before_they_come() -> None:
    odd = laid_out_matrices(checkpointed("qwen2-panels-tied", "bfloat16", layout="panels").manifest)
    assert shapes_of(odd) == ["32x128"]
    assert bytes_of(odd, "bfloat16") == len(odd) * 32 * 128 * 2
    assert laid_out_matrices(checkpointed("llama-panels-untied", "bfloat16", layout="panels").manifest) == []


def test_copies_of_matrices_take_as_much_as_the_matrices() -> None:
    """But for the embedding, norms and biases, which are used as they come."""
    manifest = checkpointed("llama-panels-untied", "float32").manifest
    layers = sum(block.size_bytes for block in manifest.blocks[1:])
    assert 0.95 * layers < bytes_of(laid_out_matrices(manifest), "float32") <= layers


@pytest.mark.parametrize("supported", [True, False])
def test_torch_multiplies_panels_where_they_lie(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    generator = torch.Generator().manual_seed(1)
    matrix, rows = (
        torch.randn(192, 96, generator=generator).bfloat16(),
        torch.randn(16, 96, generator=generator).bfloat16(),
    )
    made = multiply_panels([rows], in_panels(matrix))
    torch.testing.assert_close(made.double(), rows.double() @ matrix.double().T, atol=0.1, rtol=0.01)
    bias = torch.randn(192, generator=generator).bfloat16()
    linear = TorchLinear({"m.weight": in_panels(matrix), "m.bias": bias}, "m")
    assert torch.equal(linear(rows), made + bias)
    assert torch.equal(linear(torch.cat((rows, -rows, rows)))[32:], made + bias)


@needs_kernels
def test_a_linear_map_has_no_more_parts_than_the_kernels_know() -> None:
    kernels: Kernels | None = KERNELS
    assert kernels is not None
    tensors = {f"{name}.weight": torch.zeros(2, 2) for name in "abcd"}
    with pytest.raises(ValueError, match="at most 3 matrices, not 4"):
        CompiledLinear(kernels, tensors, *"abcd")
