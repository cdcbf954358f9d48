"""Requests, and the limits of a scheduler that gets them."""

import random
from collections.abc import Iterable
from typing import Any

from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.messages.requests import Sampling, Submit

NEVER = 4e9  # a deadline that does not come
BLOCK_TOKENS = 16  # of the KV caches of most tests
CONTEXT = 2_200  # the tokens that most of their models take


def submit(request_id: str = "a", prompt: Iterable[int] = (1, 2, 3), **fields: Any) -> Submit:
    fields = {"model": "m", "gateway": "g", "deadline": NEVER, **fields}
    return Submit(request_id=request_id, prompt=list(prompt), **fields)


def random_prompt(seed: int, length: int, vocab_size: int = 500) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab_size) for _ in range(length)]


def mixed_requests(lengths: Iterable[int], most: int = 20) -> list[Submit]:
    """Requests with prompts of these lengths: some greedy, some sampled, of 2 to `most` tokens."""
    chance = random.Random(5)
    return [
        submit(
            f"r{length}",
            random_prompt(length, length),
            max_tokens=chance.randint(2, most),
            sampling=Sampling(temperature=chance.choice((0.0, 0.9)), seed=length),
        )
        for length in lengths
    ]


def penalised(seed: int) -> Sampling:
    """Sampling that depends on all tokens before, and tells how likely each is; half of it greedy."""
    return Sampling(
        temperature=0.9 * (seed % 2),
        seed=seed,
        min_p=0.001,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        repetition_penalty=1.3,
        logit_bias=[(5, 2.0)],
        bad_words=[[3], [7, 8]],
        logprobs=2,
    )


def limits(**fields: Any) -> SchedulerLimits:
    defaults = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "max_model_len": CONTEXT,
        "vocab_size": 10_000,
        "kv_blocks": 512,
        "kv_block_tokens": BLOCK_TOKENS,
    }
    return SchedulerLimits(**{**defaults, **fields})
