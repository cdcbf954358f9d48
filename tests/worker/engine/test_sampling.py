"""Choosing tokens: greedy, drawn by seed and index, cut by top_k and top_p, stop tokens forbidden."""

from typing import Any

import numpy as np
import pytest
import torch

from livescale.services.worker.engine.sampling import choose_tokens, likeliest, uniform
from livescale.services.worker.scheduling.batch import TokenSampling
from livescale.shared.messages.requests import Sampling
from tests.worker.engine.models import checkpointed
from tests.worker.serving import random_prompt, serve, submit

VOCAB = 50
LOGITS = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1)) * 2


def _drawn(index: int = 0, forbidden: tuple[int, ...] = (), **sampling: Any) -> int:
    return choose_tokens(LOGITS.clone(), [TokenSampling(Sampling(**sampling), index, forbidden)])[0]


def _all_drawn(count: int = 2_000, **sampling: Any) -> list[int]:
    return [_drawn(index, temperature=1.0, seed=3, **sampling) for index in range(count)]


def test_temperature_zero_takes_the_likeliest() -> None:
    assert _drawn() == int(LOGITS.argmax())
    assert _drawn(temperature=1e-6, seed=5) == int(LOGITS.argmax())


def test_ties_go_to_the_lowest_id() -> None:
    assert choose_tokens(torch.ones(2, 300, dtype=torch.bfloat16), [TokenSampling(Sampling(), 0)] * 2) == [0, 0]


def test_each_row_is_chosen_by_its_own_sampling() -> None:
    samplings = [
        TokenSampling(Sampling(), 0),
        TokenSampling(Sampling(temperature=2.0, seed=1), 4),
        TokenSampling(Sampling(), 0, (3,)),
    ]
    rows = LOGITS.repeat(3, 1)
    assert choose_tokens(rows.clone(), samplings) == [
        choose_tokens(LOGITS.clone(), [sampling])[0] for sampling in samplings
    ]


def test_forbidden_tokens_are_never_chosen() -> None:
    best = int(LOGITS.argmax())
    assert _drawn(forbidden=(best,)) != best
    others = tuple(range(1, VOCAB))
    assert {_drawn(index, others, temperature=5.0) for index in range(50)} == {0}


def test_frequencies_follow_the_softmax() -> None:
    counts = np.bincount(_all_drawn(8_000), minlength=VOCAB) / 8_000
    assert np.abs(counts - LOGITS.softmax(1)[0].numpy()).max() < 0.02


def test_top_k_leaves_the_k_likeliest() -> None:
    assert set(_all_drawn(top_k=3)) == set(LOGITS[0].topk(3).indices.tolist())
    assert set(_all_drawn(200, top_k=1)) == {int(LOGITS.argmax())}


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_leaves_the_fewest_that_weigh_so_much(top_p: float) -> None:
    probabilities = LOGITS.double().softmax(1)[0].numpy()
    order = np.argsort(-probabilities, kind="stable")
    needed = int((probabilities[order].cumsum() < top_p).sum()) + 1
    assert likeliest(probabilities, 0, top_p).tolist() == order[:needed].tolist()


def test_top_p_counts_what_top_k_left() -> None:
    probabilities = np.array([0.4, 0.3, 0.2, 0.1])
    assert likeliest(probabilities, 2, 0.5).tolist() == [0]
    assert likeliest(probabilities, 2, 0.6).tolist() == [0, 1]
    assert likeliest(probabilities, 9, 1.0).tolist() == [0, 1, 2, 3]


def test_a_random_number_depends_on_seed_and_index_only() -> None:
    numbers = {uniform(seed, index) for seed in (0, 1, -1, 2**64 - 2) for index in range(100)}
    assert len(numbers) == 400
    assert uniform(7, 3) == uniform(7, 3)
    assert all(0 <= number < 1 for number in numbers)


def test_the_random_numbers_are_the_same_on_every_machine() -> None:
    assert [round(uniform(42, index), 6) for index in range(3)] == [0.820198, 0.368128, 0.876798]


def test_a_seeded_request_draws_on_where_another_worker_left_it() -> None:
    whole = submit("a", random_prompt(1, 30), max_tokens=40, sampling=Sampling(temperature=1.2, top_p=0.95, seed=9))
    tokens = serve(checkpointed("llama2-untied").engine(), [(0, whole)]).tokens["a"]
    rest = submit("a", whole.prompt, generated=tokens[:13], max_tokens=40, sampling=whole.sampling)
    assert serve(checkpointed("llama2-untied").engine(), [(0, rest)]).tokens["a"] == tokens[13:]
    other = submit("a", whole.prompt, max_tokens=40, sampling=Sampling(temperature=1.2, top_p=0.95, seed=10))
    assert serve(checkpointed("llama2-untied").engine(), [(0, other)]).tokens["a"] != tokens
