"""What is found in the prefix cache has the bits that it would have been given again."""

import pytest
import torch

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.kv_store import allocate_host_kv_memory, allocate_kv_memory
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from tests.worker.engine.models import KERNELS, checkpointed, needs_kernels
from tests.worker.requests import BLOCK_TOKENS, CONTEXT, random_prompt, submit
from tests.worker.serving import Served, serve

BASE = random_prompt(1, 400)
TAIL = random_prompt(2, 200)
# Torch's kernels, which take several times as long as ours, compute one of the types where both are not needed.
KERNELS_OF: dict[DType, Kernels | None] = {"float32": None, "bfloat16": KERNELS}


def _asked() -> list[tuple[Submit, int]]:
    """Requests after one of `BASE`, and how many of their tokens are found."""
    found = {1: 0, 15: 0, 16: 16, 23: 16, 127: 112, 128: 128, 129: 128, 200: 192, 256: 256, 300: 288, 399: 384}
    shared = [
        (submit(f"shares-{length}", [*BASE[:length], *TAIL[: 20 + length % 90]], max_tokens=6), count)
        for length, count in found.items()
    ]
    same = submit("same", BASE, max_tokens=6, sampling=Sampling(temperature=0.9, seed=3))
    return [*shared, (same, 384), (submit("begins", BASE[:273], max_tokens=6), 272)]


@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [("float32", None), ("bfloat16", None), pytest.param("bfloat16", KERNELS, marks=needs_kernels)],
)
@pytest.mark.parametrize("name", ["llama3-scaled-tied", "qwen2-untied"])
def test_a_request_that_finds_its_beginning_has_the_same_bits_as_one_that_does_not(
    name: str, dtype: DType, kernels: Kernels | None
) -> None:
    engine = checkpointed(name, dtype).engine(kernels=kernels)
    asked = _asked()
    cold = {
        one.request_id: serve(engine, [(0, one)], enable_prefix_caching=False).rows(one.request_id) for one, _ in asked
    }
    first = submit("first", BASE, max_tokens=10)
    warm = serve(engine, [(0, first), *((5, one) for one, _ in asked)])
    assert {id: count for id, count in warm.cached.items() if id != "first"} == {
        one.request_id: count for one, count in asked
    }
    for request_id, rows in cold.items():
        assert torch.equal(warm.rows(request_id), rows), request_id


@pytest.mark.parametrize(
    ("dtype", "name", "found"),
    [("float32", None, [0, 144, 240, 320]), ("bfloat16", "talk", [0, 192, 288, 368])],
)
def test_a_conversation_has_the_same_bits_in_every_turn(dtype: DType, name: str | None, found: list[int]) -> None:
    engine = checkpointed("qwen2-tied", dtype).engine(kernels=KERNELS_OF[dtype])
    prompt, turns, cold = BASE[:150], list[Submit](), list[Served]()
    for turn in range(4):
        turns.append(submit(f"turn-{turn}", prompt, max_tokens=50, context_id=name))
        cold.append(serve(engine, [(0, turns[-1])], enable_prefix_caching=False))
        prompt = [*prompt, *cold[-1].tokens[f"turn-{turn}"], *random_prompt(turn, 40)]
    warm = serve(engine, [(60 * turn, one) for turn, one in enumerate(turns)], context_blocks=64)
    assert list(warm.cached.values()) == found
    for one, alone in zip(turns, cold, strict=True):
        assert torch.equal(warm.rows(one.request_id), alone.rows(one.request_id)), one.request_id


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_fetched_from_host_memory_has_the_same_bits(dtype: DType) -> None:
    made = checkpointed("qwen2-untied", dtype)
    token_bytes = 384 * (4 if dtype == "float32" else 2)
    memory, host_memory = allocate_kv_memory(544 * token_bytes), allocate_host_kv_memory(800 * token_bytes)
    engine = TorchEngine(made.manifest, memory, BLOCK_TOKENS, CONTEXT, host_memory=host_memory)
    for index, block in enumerate(made.blocks):
        engine.add_block(index, memoryview(block))
    first, again = (submit(name, BASE[:300], max_tokens=9) for name in ("first", "again"))
    fills = submit("fills", random_prompt(3, 500), max_tokens=9)
    warm = serve(engine, [(0, first), (20, fills), (50, again)], host_kv_blocks=engine.store.host_blocks)
    assert (warm.cached["again"], warm.fetched) == (288, 256)
    assert torch.equal(warm.rows("again"), warm.rows("first"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_that_is_preempted_beside_kept_blocks_has_the_same_bits(dtype: DType) -> None:
    engine = checkpointed("qwen2-untied", dtype).engine(
        kv_tokens=640 if dtype == "float32" else 320, kernels=KERNELS_OF[dtype]
    )
    requests = [submit(f"r{number}", [*BASE[:129], number], max_tokens=100 + number) for number in range(6)]
    together = serve(engine, [(number, one) for number, one in enumerate(requests)])
    assert together.preempted > 0
    for one in requests:
        alone = serve(engine, [(0, one)], enable_prefix_caching=False)
        assert torch.equal(together.rows(one.request_id), alone.rows(one.request_id)), one.request_id
