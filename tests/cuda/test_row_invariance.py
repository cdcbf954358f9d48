"""On a GPU: a request's logits have the same bits whatever it is batched with, by whichever kernels."""

import random
from dataclasses import dataclass

import pytest
import torch

from livescale.services.worker.engine.attention import use_math_kernels
from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.engine.paged_attention import find_flashinfer
from livescale.shared.messages.parameters import DType
from tests.cuda.test_engine import MIB, arena_with
from tests.worker.engine.models import checkpointed
from tests.worker.requests import BLOCK_TOKENS, CONTEXT, mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each, strays

MODEL = "llama-heads-of-64"
LENGTHS = (1, 3, 17, 64, 127, 128, 129, 200, 257, 400, 900)
needs_flashinfer = pytest.mark.skipif(not find_flashinfer(), reason="flashinfer-python is not installed")


@dataclass(frozen=True)
class Way:
    """A way to compute on a GPU."""

    dtype: DType
    on_gpu: GpuFeatures = NO_GPU_FEATURES

    def engine(self, device: str) -> TorchEngine:
        use_math_kernels()
        made = checkpointed(MODEL, self.dtype)
        memory = allocate_kv_memory(64 * MIB, device)
        engine = TorchEngine(made.manifest, memory, BLOCK_TOKENS, CONTEXT, on_gpu=self.on_gpu)
        for index, block in enumerate(arena_with(made, device).place([len(block) for block in made.blocks])):
            engine.add_block(index, block)
        return engine


GRAPHS = Way("bfloat16", GpuFeatures(graphs=True))
WAYS = [
    pytest.param(Way("float32"), id="float32"),
    pytest.param(Way("bfloat16"), id="bfloat16"),
    pytest.param(GRAPHS, id="graphs"),
    pytest.param(Way("bfloat16", GpuFeatures(flashinfer=True)), id="flashinfer", marks=needs_flashinfer),
    pytest.param(Way("bfloat16", GpuFeatures(flashinfer=True, graphs=True)), id="both", marks=needs_flashinfer),
]


@pytest.mark.parametrize("way", WAYS)
def test_batch_composition_changes_no_bit(way: Way, gpus: tuple[str, str]) -> None:
    engine = way.engine(gpus[0])
    requests = mixed_requests(LENGTHS)
    undisturbed = serve_each(engine, requests)
    for seed in range(4):
        chance = random.Random(seed)
        arrivals = [(chance.randrange(30), request) for request in requests]
        together = serve(
            engine,
            arrivals,
            spans=chance.randint(1, 2),
            max_num_seqs=chance.randint(1, 16),
            max_num_batched_tokens=chance.choice((144, 200, 512, 2_048)),
        )
        for key, served in undisturbed.items():
            assert together.tokens[key] == served.tokens[key]
            assert torch.equal(together.rows(key), served.rows(key)), (key, seed)


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_request_continues_with_the_same_bits(way: Way, gpus: tuple[str, str]) -> None:
    whole = submit("whole", random_prompt(9, 150), max_tokens=60)
    engine = way.engine(gpus[0])
    uninterrupted = serve(engine, [(0, whole)])
    tokens = uninterrupted.tokens["whole"]
    for known in (1, 30, 59):
        resumed = serve(engine, [(0, submit("r", whole.prompt, generated=tokens[:known], max_tokens=60))])
        assert resumed.tokens["r"] == tokens[known:]
        assert torch.equal(resumed.rows("r"), uninterrupted.rows("whole")[known:])


def test_graphs_change_no_bit(gpus: tuple[str, str]) -> None:
    graphed, without = (serve_each(way.engine(gpus[0]), mixed_requests(LENGTHS)) for way in (GRAPHS, Way("bfloat16")))
    for key, served in without.items():
        assert torch.equal(graphed[key].rows(key), served.rows(key)), key


@pytest.mark.parametrize("way", WAYS[1:])
def test_bfloat16_strays_from_float32_no_further_than_transformers_own(way: Way, gpus: tuple[str, str]) -> None:
    prompts = {str(length): random_prompt(length, length) for length in (40, 129, 300)}
    served = serve(way.engine(gpus[0]), ((0, submit(key, prompt, max_tokens=24)) for key, prompt in prompts.items()))
    ours, theirs = strays(MODEL, prompts, served)
    assert ours <= 1.5 * theirs
