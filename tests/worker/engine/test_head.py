"""Decoders that pool make the vectors of transformers, and a vector's bits depend on its prompt alone."""

import random

import numpy as np
import pytest
import torch

from livescale.services.worker.engine.contract import BlockMissing
from livescale.services.worker.scheduling.batch import NO_BYTES
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import DType
from tests.worker.engine.models import KINDS, Kind
from tests.worker.engine.pooled import (
    LABELS,
    Numbers,
    asking,
    cosine,
    numbers,
    pool,
    pooling_checkpoint,
    pooling_reference,
)
from tests.worker.engine.test_tensor_parallel import in_ranks
from tests.worker.requests import limits, random_prompt, submit

PROMPTS = {str(length): random_prompt(length, length) for length in (1, 5, 129, 300)}
USES = ("embeds", "scores")


def theirs(use: str, prompt: list[int], dtype: DType = "float32") -> Numbers:
    with torch.inference_mode():
        made = pooling_reference("qwen3", use, dtype)(torch.tensor([prompt]))
    right: Numbers = (made.last_hidden_state[0, -1] if use == "embeds" else made.logits[0]).double().numpy()
    return right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_vectors_and_scores_are_those_of_transformers(use: str, kind: Kind) -> None:
    engine = pooling_checkpoint("qwen3", use, kind.dtype).engine(kernels=kind.kernels)
    made, _ = pool(engine, [(0, asking(key, prompt)) for key, prompt in PROMPTS.items()])
    for key, prompt in PROMPTS.items():
        ours, right = numbers(made[key]), theirs(use, prompt)
        if kind.dtype == "float32":
            assert np.abs(ours - right).max() <= 1e-4 * right.std(), key
        elif use == "embeds":
            assert cosine(ours, right) >= 0.9995, key
            assert cosine(ours, right) >= cosine(theirs(use, prompt, "bfloat16"), right) - 1e-4
        else:
            assert len(ours) == LABELS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_neither_the_batch_nor_a_prefix_hit_changes_a_bit(use: str, kind: Kind) -> None:
    engine, chance = pooling_checkpoint("qwen3", use, kind.dtype).engine(kernels=kind.kernels), random.Random(2)
    alone = {key: pool(engine, [(0, asking(key, prompt))])[0][key] for key, prompt in PROMPTS.items()}
    arrivals = [(chance.randrange(6), asking(key, prompt)) for key, prompt in PROMPTS.items()]
    # Once more when their prompts are kept.
    arrivals += [(40, asking(f"again {key}", prompt)) for key, prompt in PROMPTS.items()]
    together, cached = pool(engine, arrivals, max_num_seqs=3, max_num_batched_tokens=200)
    assert cached > 300
    for key, made in alone.items():
        assert together[key] == together[f"again {key}"] == made, key


@pytest.mark.parametrize("use", USES)
def test_two_ranks_are_right(use: str) -> None:
    """The first one tells."""
    prompt, scheduler = PROMPTS["129"], Scheduler(limits(pools=True))
    scheduler.add(asking("a", prompt))
    batch = scheduler.next_batch()
    assert batch is not None
    first, second = in_ranks(pooling_checkpoint("qwen3", use, shards=2), 2, lambda engine: engine.step(batch))
    assert second.tokens == []
    right = theirs(use, prompt)
    assert np.abs(numbers(first.logprobs[0].pooled) - right).max() <= 1e-4 * right.std()


def test_parts_of_a_model_make_the_same_vector_one_after_the_other() -> None:
    engine, scheduler = pooling_checkpoint("qwen3", "embeds").engine(), Scheduler(limits(pools=True))
    scheduler.add(asking("a", PROMPTS["129"]))
    batch = scheduler.next_batch()
    assert batch is not None
    whole = engine.step(batch).logprobs[0].pooled
    half = engine.run_blocks(range(3), batch.chunks, NO_BYTES)
    assert engine.run_blocks(range(3, 6), batch.chunks, half.activation).chosen.logprobs[0].pooled == whole


def test_a_model_is_asked_for_what_it_makes_only() -> None:
    engine = pooling_checkpoint("qwen3", "embeds").engine()
    with pytest.raises(Refusal, match="makes vectors, and the request asks for tokens"):
        pool(engine, [(0, submit("a"))])
    with pytest.raises(Refusal, match="makes tokens, and the request asks for vectors"):
        pool(engine, [(0, asking("a", [1]))], pools=False)


def test_nothing_is_pooled_before_the_last_block_is_here() -> None:
    checkpoint = pooling_checkpoint("qwen3", "embeds")
    engine = checkpoint.empty_engine()
    for index, block in enumerate(checkpoint.blocks[:-1]):
        engine.add_block(index, memoryview(block))
    with pytest.raises(BlockMissing, match="cannot pool: block 5 was not added"):
        pool(engine, [(0, asking("a", [1, 2, 3]))])
