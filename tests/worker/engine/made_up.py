"""A model without parameters, for an engine that computes nothing, and what that one is asked for."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_steps import choose_token, first_state, follow
from livescale.services.worker.scheduling.batch import NO_BYTES, TokenSampling
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.messages.requests import Submit
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.latency import Latency
from tests.clocks import LoopClock
from tests.worker.requests import limits

BLOCK_TOKENS = 16
LAYERS = 4
VOCABULARY = 509
LATENCY = Latency(source="made up", prefill=(10.0, 0.1, 1e-5), decode=(20.0, 0.5, 1e-3))
CONFIG = ModelConfig(
    family="llama",
    vocab_size=VOCABULARY,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=LAYERS,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=4_096,
)
BLOCK_BYTES = LAYERS * 2 * BLOCK_TOKENS * CONFIG.head_dim * 2


def manifest(version: str = "v1") -> Manifest:
    blocks = [layout.block(checksum=0) for layout in block_layouts(CONFIG, "bfloat16")]
    return Manifest(version=version, config=CONFIG, dtype="bfloat16", blocks=blocks)


async def loaded(
    version: str = "v1", kv_blocks: int = 512, speed: float = 1.0, worked: Callable[[], float] = lambda: 0.0
) -> ModelledRunner:
    """All blocks are there."""
    runner = ModelledRunner(kv_blocks * BLOCK_BYTES, BLOCK_TOKENS, LATENCY, speed, LoopClock(epoch=0.0), worked=worked)
    made = manifest(version)
    assert await runner.load(made, 4_096) == kv_blocks
    for block in made.blocks:
        await runner.add_block(block.index, NO_BYTES)
    return runner


def made_up_tokens(version: str, vocab_size: int, request: Submit) -> list[int]:
    """What any modelled engine makes of a request, without one."""
    adapter = None if request.adapter is None else request.adapter.version
    *_, state = follow(first_state(version, adapter), request.prompt)
    tokens: list[int] = []
    while len(tokens) < request.max_tokens:
        sampling = TokenSampling(request.sampling, len(tokens), stops=tuple(request.stop_token_ids))
        tokens.append(choose_token(state, sampling, vocab_size))
        [state] = follow(state, tokens[-1:])
    return tokens


@dataclass
class Served:
    tokens: dict[str, list[int]] = field(default_factory=dict)
    steps: int = 0
    preempted: int = 0
    seconds: float = 0.0


async def serve(runner: ModelledRunner, *requests: Submit, kv_blocks: int = 512, at_once: int = 16) -> Served:
    """A request arrives before each step while there are more."""
    scheduler = Scheduler(limits(kv_blocks=kv_blocks, vocab_size=VOCABULARY, max_num_seqs=at_once))
    served, waiting = Served(), list(requests)
    begun = asyncio.get_running_loop().time()
    while waiting or not scheduler.is_empty:
        if waiting:
            scheduler.add(waiting.pop(0))
        batch = scheduler.next_batch()
        assert batch is not None
        served.steps += 1
        served.preempted += len(batch.preempted)
        for output in scheduler.complete(batch, await runner.step(batch), now=0.0):
            served.tokens.setdefault(output.row.request_id, []).extend(output.row.token_ids)
    served.seconds = asyncio.get_running_loop().time() - begun
    return served
