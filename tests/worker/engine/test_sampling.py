"""Choosing tokens: greedy, drawn by seed and index, cut by top_k and top_p, stop tokens forbidden."""

from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from livescale.services.worker.engine.sampling import choose_tokens, likeliest, uniform
from livescale.services.worker.grammars.masks import StepMasks
from livescale.services.worker.scheduling.batch import Past, TokenSampling, Withheld
from livescale.shared.messages.requests import Sampling, TokenLogprobs
from tests.worker.engine.models import checkpointed
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve

VOCAB = 50
LOGITS = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1)) * 2


def _drawn(index: int = 0, forbidden: tuple[int, ...] = (), **sampling: Any) -> int:
    return choose_tokens(LOGITS.clone(), [TokenSampling(Sampling(**sampling), index, forbidden)]).tokens[0]


def _all_drawn(count: int = 2_000, **sampling: Any) -> list[int]:
    return [_drawn(index, temperature=1.0, seed=3, **sampling) for index in range(count)]


def test_temperature_zero_takes_the_likeliest() -> None:
    assert _drawn() == int(LOGITS.argmax())
    assert _drawn(temperature=1e-6, seed=5) == int(LOGITS.argmax())


def test_ties_go_to_the_lowest_id() -> None:
    assert choose_tokens(torch.ones(2, 300, dtype=torch.bfloat16), [TokenSampling(Sampling(), 0)] * 2).tokens == [0, 0]


def test_each_row_is_chosen_by_its_own_sampling() -> None:
    samplings = [
        TokenSampling(Sampling(), 0),
        TokenSampling(Sampling(temperature=2.0, seed=1), 4),
        TokenSampling(Sampling(), 0, (3,)),
    ]
    rows = LOGITS.repeat(3, 1)
    assert choose_tokens(rows.clone(), samplings).tokens == [
        choose_tokens(LOGITS.clone(), [sampling]).tokens[0] for sampling in samplings
    ]


def test_only_tokens_that_a_grammar_permits_are_chosen_and_log_probabilities_stay_the_models() -> None:
    mask = np.zeros(2, np.int32)
    mask[0], mask[1] = 1 << 5 | 1 << 9, 1 << 3
    rows, permitted = LOGITS.repeat(3, 1), StepMasks({1: mask, 2: mask}, {0: Withheld("late")})
    params = Sampling(temperature=1.5, bad_words=[[5]], logprobs=2)
    samplings = [TokenSampling(one, 0, past=Past()) for one in (Sampling(), Sampling(logprobs=2), params)]
    drawn = [
        choose_tokens(rows.clone(), [structs.replace(one, index=i) for one in samplings], permitted) for i in range(50)
    ]
    assert {chosen.tokens[1] for chosen in drawn} == {max((5, 9, 35), key=lambda token: float(LOGITS[0, token]))}
    assert {chosen.tokens[2] for chosen in drawn} == {9, 35}
    assert {chosen.withheld[0] for chosen in drawn} == {Withheld("late")}
    free = choose_tokens(LOGITS.clone(), [TokenSampling(Sampling(logprobs=2), 0)])
    assert drawn[0].logprobs[1].top == free.logprobs[0].top


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


@pytest.mark.parametrize("min_p", [0.02, 0.2, 1.0])
def test_min_p_leaves_what_is_likely_next_to_the_likeliest(min_p: float) -> None:
    probabilities = LOGITS.double().softmax(1)[0].numpy()
    kept = set(np.flatnonzero(probabilities >= min_p * probabilities.max()).tolist())
    drawn = set(_all_drawn(min_p=min_p))
    assert drawn <= kept
    assert len(drawn) > len(kept) // 2
    assert set(_all_drawn(200, min_p=min_p, top_k=1)) == {int(LOGITS.argmax())}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_those_of_the_logits_as_they_came(dtype: torch.dtype) -> None:
    rows = LOGITS.to(dtype).repeat(3, 1)
    expected = rows[0].double().log_softmax(0).numpy()
    best, order = int(expected.argmax()), np.argsort(-expected, kind="stable").tolist()
    samplings = [
        TokenSampling(Sampling(logprobs=3), 0, (best,)),
        TokenSampling(Sampling(), 0),
        TokenSampling(Sampling(logprobs=0, logit_bias=[(7, 100.0)], temperature=1.0), 0, past=Past()),
    ]
    chosen = choose_tokens(rows, samplings)
    assert chosen.tokens == [order[1], best, 7]
    assert chosen.logprobs.keys() == {0, 2}
    assert [id for id, _ in chosen.logprobs[0].top] == order[:3]
    assert [found for _, found in chosen.logprobs[0].top] == pytest.approx(expected[order[:3]].tolist())
    assert chosen.logprobs[0].chosen == chosen.logprobs[0].top[1][1]
    assert chosen.logprobs[2] == TokenLogprobs(float(np.float32(expected[7])))


SHAPED = Sampling(
    temperature=1.1,
    seed=4,
    min_p=0.001,
    presence_penalty=0.6,
    frequency_penalty=0.4,
    repetition_penalty=1.3,
    logit_bias=[(5, 2.0), (9, -3.0)],
    bad_words=[[3], [7, 8]],
    logprobs=4,
)


def test_tokens_and_log_probabilities_are_the_same_alone_in_a_batch_and_resumed() -> None:
    model = checkpointed("qwen2-tied", "bfloat16")
    asked = [submit(f"r{k}", random_prompt(k, 20 + k), max_tokens=24, sampling=SHAPED) for k in range(3)]
    greedy = structs.replace(SHAPED, temperature=0.0)
    asked.append(submit("greedy", random_prompt(3, 9), max_tokens=24, sampling=greedy))
    plain = [submit(f"p{k}", random_prompt(9, 40), max_tokens=30) for k in range(2)]
    together = serve(model.engine(), [*((2 * at, one) for at, one in enumerate(asked)), *((3, one) for one in plain)])
    for one in asked:
        alone = serve(model.engine(), [(0, one)])
        id, tokens = one.request_id, alone.tokens[one.request_id]
        assert together.tokens[id] == tokens
        assert together.logprobs[id] == alone.logprobs[id]
        assert len(alone.logprobs[id]) == len(tokens) == 24
        for known in (1, 11):
            rest = serve(model.engine(), [(0, structs.replace(one, generated=tokens[:known]))])
            assert rest.tokens[id] == tokens[known:]
            assert rest.logprobs[id] == alone.logprobs[id][known:]
    assert not together.logprobs["p0"]


def test_penalties_change_what_is_chosen() -> None:
    model = checkpointed("qwen2-tied", "bfloat16")
    whole = submit("a", random_prompt(3, 9), max_tokens=40)
    tokens = serve(model.engine(), [(0, whole)]).tokens["a"]
    harsh = structs.replace(whole, sampling=Sampling(presence_penalty=2.0, frequency_penalty=2.0))
    assert len(set(tokens)) < 40
    assert len(set(serve(model.engine(), [(0, harsh)]).tokens["a"])) > len(set(tokens))


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


def test_named_tokens_are_told_in_place_of_the_likeliest() -> None:
    expected = LOGITS[0].double().log_softmax(0).numpy()
    params = Sampling(logprobs=3, logprob_token_ids=[7, 2])
    told = choose_tokens(LOGITS.clone(), [TokenSampling(params, 0)]).logprobs[0]
    assert [id for id, _ in told.top] == [7, 2]
    assert [found for _, found in told.top] == pytest.approx(expected[[7, 2]].tolist())
    assert told.chosen == float(np.float32(expected.max()))
