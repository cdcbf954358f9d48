"""Right is what transformers computes in float32 on the same checkpoint, teacher-forced on our tokens."""

import pytest
import torch

from tests.worker.engine.configs import CONFIGS
from tests.worker.engine.greedy import are_greedy
from tests.worker.engine.models import KINDS, Kind, checkpointed, reference_logits
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve, strays

# Chunks begin at 0, 128, 256, ...: around their edges, and past the RoPE scaling's original context.
LENGTHS = (1, 2, 3, 5, 127, 128, 129, 300, 700)


def _prompts(lengths: tuple[int, ...]) -> dict[str, list[int]]:
    return {str(length): random_prompt(length, length) for length in lengths}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_greedy_token_is_the_references_argmax_or_ties_with_it(name: str) -> None:
    prompts = _prompts(LENGTHS)
    engine = checkpointed(name).engine()
    served = serve(engine, ((0, submit(key, prompt, max_tokens=24)) for key, prompt in prompts.items()))
    for key, prompt in prompts.items():
        tokens = served.tokens[key]
        logits = reference_logits(name, prompt, tokens)
        assert len(tokens) == 24
        assert are_greedy(logits, tokens), key
        assert torch.allclose(served.rows(key), logits, atol=1e-3, rtol=1e-3), key


def test_a_prompt_of_2000_tokens_is_right() -> None:
    prompt = random_prompt(1, 2_000)
    served = serve(checkpointed("llama3-scaled-tied").engine(), [(0, submit("long", prompt, max_tokens=4))])
    tokens = served.tokens["long"]
    logits = reference_logits("llama3-scaled-tied", prompt, tokens)
    assert logits.argmax(dim=1).tolist() == tokens


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_strays_from_float32_no_further_than_transformers_own(name: str, kind: Kind) -> None:
    prompts = _prompts((40, 129, 300))
    engine = kind.engine(name)
    served = serve(engine, ((0, submit(key, prompt, max_tokens=24)) for key, prompt in prompts.items()))
    ours, theirs = strays(name, prompts, served)
    assert ours <= 1.5 * theirs


def test_greedy_output_of_these_models_varies() -> None:
    """Otherwise equal tokens would mean nothing."""
    for name in CONFIGS:
        served = serve(checkpointed(name).engine(), [(0, submit("a", random_prompt(3, 20), max_tokens=40))])
        assert len(set(served.tokens["a"])) > 20, name
