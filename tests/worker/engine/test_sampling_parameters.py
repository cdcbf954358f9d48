"""What parameters do to logits is what transformers' processors do, and depends on nothing but the tokens so far."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from livescale.services.worker.engine.kernels.variants import find_compiled
from livescale.services.worker.engine.likelihoods import Floats
from livescale.services.worker.engine.sampling import TokenMask, change_logits, completing
from livescale.services.worker.scheduling.batch import LEAST_TEMPERATURE, Past
from livescale.shared.messages.requests import Sampling
from tests.fuzz.effort import examples

VOCAB = 40
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
ROW: Floats = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2)).double().numpy() * 3


def changed(prompt: Sequence[int], generated: Sequence[int], **params: Any) -> Floats:
    past = Past(tuple(sorted(set(prompt))), tuple(generated))
    return change_logits(ROW.copy(), Sampling(**params), past)


def reference(processor: LogitsProcessor, tokens: Sequence[int]) -> Floats:
    scores = processor(torch.tensor([list(tokens)], dtype=torch.long), torch.tensor(ROW[None].copy()))
    return np.asarray(scores[0].numpy(), np.float64)


@examples(40)
@given(TOKENS, TOKENS, st.floats(0.5, 2.0))
def test_the_repetition_penalty_is_that_of_transformers(prompt: list[int], generated: list[int], by: float) -> None:
    expected = reference(RepetitionPenaltyLogitsProcessor(by), [*prompt, *generated])
    assert changed(prompt, generated, repetition_penalty=by) == pytest.approx(expected)


def test_the_least_repetition_penalty_leaves_logits_finite() -> None:
    tokens = range(VOCAB)
    assert np.isfinite(changed(tokens, tokens, repetition_penalty=5e-324) / LEAST_TEMPERATURE).all()


@examples(40)
@given(TOKENS, TOKENS, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_count_what_was_generated(
    prompt: list[int], generated: list[int], presence: float, frequency: float
) -> None:
    counts = np.bincount(generated, minlength=VOCAB)
    expected = ROW - frequency * counts - presence * (counts > 0)
    found = changed(prompt, generated, presence_penalty=presence, frequency_penalty=frequency)
    assert found == pytest.approx(expected)


@examples(40)
@given(TOKENS, st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3), min_size=1, max_size=5))
def test_bad_words_are_those_of_transformers(generated: list[int], words: list[list[int]]) -> None:
    processor = NoBadWordsLogitsProcessor([list(word) for word in {tuple(word) for word in words}])
    assert changed([], generated, bad_words=words).tolist() == reference(processor, generated).tolist()


def test_a_prompt_completes_no_bad_word() -> None:
    assert list(completing([[1, 2]], [])) == []
    assert list(completing([[1, 2], [3], [0, 1, 4]], [9, 0, 1])) == [2, 3, 4]


def test_only_allowed_tokens_are_left_and_a_bias_moves_them() -> None:
    found = changed([], [], allowed_token_ids=[3, 7], logit_bias=[(7, 5.0), (8, 100.0)])
    assert np.flatnonzero(found > -np.inf).tolist() == [3, 7]
    assert found[[3, 7]] == pytest.approx(ROW[[3, 7]] + [0, 5])


def test_bad_words_give_way_where_no_token_would_be_left() -> None:
    assert changed([], [], allowed_token_ids=[3, 7], bad_words=[[3], [7]])[[3, 7]].tolist() == ROW[[3, 7]].tolist()


def test_a_bias_comes_before_penalties_as_in_vllm() -> None:
    place = int(ROW.argmin())
    assert ROW[place] < 0 < ROW[place] + 100
    assert changed([place], [], logit_bias=[(place, 100.0)], repetition_penalty=2.0)[place] == (ROW[place] + 100) / 2


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": [(1, 1.0)]},
        {"bad_words": [[1]]},
        {"allowed_token_ids": [1]},
    ],
)
def test_what_changes_logits_is_known_beforehand(params: dict[str, Any]) -> None:
    assert Sampling(**params).changes_logits
    assert changed([1], [1], **params).tolist() != ROW.tolist()
    assert not Sampling(temperature=1.0, top_k=2, top_p=0.5, min_p=0.1, seed=3, logprobs=5).changes_logits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 31, 32, 1000, 1024])
def test_compiled_masks_and_torch_permit_the_same_tokens(dtype: torch.dtype, size: int) -> None:
    compiled = find_compiled()
    if compiled is None:
        pytest.skip("there is no compiler")
    chance = np.random.default_rng(size)
    mask = chance.integers(-(2**31), 2**31, -(-size // 32), dtype=np.int32)
    mask[:1] = -1
    row = torch.from_numpy(chance.standard_normal(size)).to(dtype)
    fast, slow = row.clone(), row.clone()
    TokenMask(compiled).apply(fast, mask)
    TokenMask(None).apply(slow, mask)
    assert torch.equal(fast.view(torch.uint8), slow.view(torch.uint8))
    permitted = [bool(mask[token // 32] >> token % 32 & 1) for token in range(size)]
    assert [not torch.isinf(logit) for logit in slow] == permitted
