"""Torch's own kernels, which run on GPUs and where no others were compiled: right, over parameters in a device's
memory, and of each row the same bits wherever it stands."""

import pytest
import torch

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.parameters import CPU_SLAB_ROWS, TorchLinear, stable_silu
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.memory.device_arena import DeviceArena
from tests.worker.engine.configs import CONFIGS
from tests.worker.engine.greedy import are_greedy
from tests.worker.engine.models import checkpointed, reference_logits
from tests.worker.serving import random_prompt, serve, submit


def on_device(name: str) -> TorchEngine:
    """The model `name` with its blocks in an arena of a device."""
    made = checkpointed(name)
    sizes = [len(block) for block in made.blocks]
    engine = made.empty_engine()
    for index, memory in enumerate(DeviceArena(placed_bytes(sizes), "cpu").place(sizes)):
        memory.tensor.copy_(torch.frombuffer(made.blocks[index], dtype=torch.uint8))
        engine.add_block(index, memory)
    return engine


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_right(name: str) -> None:
    prompts = {str(length): random_prompt(length, length) for length in (1, 40, 129, 300)}
    served = serve(on_device(name), ((0, submit(key, prompt, max_tokens=16)) for key, prompt in prompts.items()))
    for key, prompt in prompts.items():
        tokens = served.tokens[key]
        logits = reference_logits(name, prompt, tokens)
        assert are_greedy(logits, tokens), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(512, 1_100), (1_536, 1_100), (4_096, 1_100), (8_192, 1_100), (70, 2), (70, 10), (131, 31)]
)
def test_a_row_has_the_same_bits_at_every_place_in_its_slab(
    inputs: int, outputs: int, threads: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    tensors = {"m.weight": torch.randn(outputs, inputs, generator=generator).to(dtype)}
    rows = torch.randn(CPU_SLAB_ROWS, inputs, generator=generator).to(dtype)
    linear = TorchLinear(tensors, "m")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        right, gated = linear(rows), stable_silu(linear(rows))
        for shift in range(1, CPU_SLAB_ROWS):
            made = linear(rows.roll(shift, 0))
            assert torch.equal(made.roll(-shift, 0), right), shift
            assert torch.equal(stable_silu(made).roll(-shift, 0), gated), shift
    finally:
        torch.set_num_threads(before)
