"""The engine on a GPU: its tokens are right, whatever way its parameters came."""

import pytest
import torch

from livescale.services.worker.engine.attention import use_math_kernels
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_host_kv_memory, allocate_kv_memory
from livescale.services.worker.engine.runner import EngineRunner
from livescale.shared.memory.arena import Arena, placed_bytes
from livescale.shared.memory.device_arena import DeviceArena
from tests.worker.engine.configs import CONFIGS
from tests.worker.engine.greedy import are_greedy
from tests.worker.engine.models import Checkpointed, checkpointed, reference_logits
from tests.worker.requests import BLOCK_TOKENS, CONTEXT, random_prompt, submit
from tests.worker.serving import serve

MIB = 1 << 20


def arena_with(made: Checkpointed, device: str) -> DeviceArena:
    sizes = [len(block) for block in made.blocks]
    arena = DeviceArena(placed_bytes(sizes), device)
    for memory, block in zip(arena.place(sizes), made.blocks, strict=True):
        memory.tensor.copy_(torch.frombuffer(block, dtype=torch.uint8))
    arena.clear()
    return arena


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_right(name: str, gpus: tuple[str, str]) -> None:
    use_math_kernels()
    made, device = checkpointed(name), gpus[1]
    engine = TorchEngine(made.manifest, allocate_kv_memory(64 * MIB, device), BLOCK_TOKENS, CONTEXT)
    for index, memory in enumerate(arena_with(made, device).place([len(block) for block in made.blocks])):
        engine.add_block(index, memory)
    prompts = {str(length): random_prompt(length, length) for length in (1, 40, 129, 300)}
    served = serve(engine, ((0, submit(key, prompt, max_tokens=16)) for key, prompt in prompts.items()))
    for key, prompt in prompts.items():
        tokens = served.tokens[key]
        logits = reference_logits(name, prompt, tokens)
        assert are_greedy(logits, tokens), key


async def test_kv_goes_to_the_host_and_back(gpus: tuple[str, str]) -> None:
    made = checkpointed("qwen2-tied")
    runner = EngineRunner(64 * MIB, BLOCK_TOKENS, device=gpus[0])
    assert await runner.load(made.manifest, CONTEXT) > 4
    assert runner._engine is not None
    store = runner._engine.store
    store.cache.normal_()
    store.import_kv(range(2, 4), range(3), store.export_kv(range(2), range(3)))
    assert torch.equal(store.cache[:, :, :, 32:64], store.cache[:, :, :, :32])
    await runner.close()


def test_a_gpu_without_so_much_memory_is_refused(gpus: tuple[str, str]) -> None:
    with pytest.raises(MemoryError, match="cuda:0 has no"):
        DeviceArena(1 << 50, gpus[0])


def test_host_memory_for_kv_is_pinned(gpus: tuple[str, str]) -> None:
    assert allocate_host_kv_memory(3 * MIB, gpus[0]).is_pinned()


def test_the_host_cache_is_pinned() -> None:
    (view,) = Arena(MIB, torch.cuda.cudart()).place([MIB])  # type: ignore[no-untyped-call]
    assert torch.frombuffer(view, dtype=torch.uint8).is_pinned()
