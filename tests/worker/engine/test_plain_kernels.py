"""What runs on a GPU, run on the CPU: torch's own kernels over parameters in a device's memory."""

import pytest
import torch

from services.worker.engine import engine as engine_module
from services.worker.engine import layer as layer_module
from services.worker.engine import matrices as matrices_module
from services.worker.engine.engine import Engine
from services.worker.engine.kernels.contract import Kernels
from services.worker.engine.matrices import make_linear
from services.worker.engine.parameters import OneDnnLinear, PlainLinear, Tensors
from shared.arena import placed_bytes
from shared.device_arena import DeviceArena
from tests.worker.engine.models import CONFIGS, are_greedy, checkpointed, reference_logits
from tests.worker.serving import random_prompt, serve, submit


def plain(tensors: Tensors, *names: str, out_step: int = 1, kernels: Kernels | None = None) -> PlainLinear:
    return PlainLinear(tensors, *names)


def on_device(name: str) -> Engine:
    """The model `name` with its blocks in an arena of a device."""
    made = checkpointed(name)
    sizes = [len(block) for block in made.blocks]
    engine = made.empty_engine()
    for index, memory in enumerate(DeviceArena(placed_bytes(sizes), "cpu").place(sizes)):
        memory.tensor.copy_(torch.frombuffer(made.blocks[index], dtype=torch.uint8))
        engine.add_block(index, memory)
    return engine


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (layer_module, matrices_module, engine_module):
        monkeypatch.setattr(module, "make_linear", plain)
    prompts = {str(length): random_prompt(length, length) for length in (1, 40, 129, 300)}
    served = serve(on_device(name), ((0, submit(key, prompt, max_tokens=16)) for key, prompt in prompts.items()))
    for key, prompt in prompts.items():
        tokens = served.tokens[key]
        logits = reference_logits(name, prompt, tokens)
        assert are_greedy(logits, tokens), key


def test_they_do_what_the_cpus_own_do() -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "q.weight": torch.randn(6, 8, generator=generator),
        "q.bias": torch.randn(6, generator=generator),
        "k.weight": torch.randn(4, 8, generator=generator),
        "k.bias": torch.randn(4, generator=generator),
    }
    rows, other = torch.randn(5, 8, generator=generator), torch.randn(5, 10, generator=generator)
    ours, theirs = PlainLinear(tensors, "q", "k"), OneDnnLinear(tensors, "q", "k")
    torch.testing.assert_close(ours(rows), theirs(rows))
    torch.testing.assert_close(ours.swish(rows), theirs.swish(rows))
    torch.testing.assert_close(ours.plus(rows, other), theirs.plus(rows, other))
    torch.testing.assert_close(ours.times(rows, other), theirs.times(rows, other))


def test_a_cpus_parameters_get_a_cpus_kernels() -> None:
    assert isinstance(make_linear({"q.weight": torch.zeros(2, 2)}, "q"), OneDnnLinear)
