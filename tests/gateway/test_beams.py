"""Beams: how they grow, and which of them is better."""

import itertools
import math
import random
from typing import Any

import openai
import pytest

from livescale.services.gateway.beams import Beam, extended
from livescale.shared.messages.requests import Submit, TokenLogprobs
from tests.gateway.conftest import ServedGateway


def test_beams_grow_by_their_likeliest_tokens() -> None:
    found = [TokenLogprobs(0.0, [(1, -1.0), (2, -3.0)]), TokenLogprobs(0.0, [(1, -0.5)])]
    grown = extended([Beam((7,), -1.0), Beam((8,), -2.0)], found, frozenset({2}))
    assert [(beam.tokens, beam.logprob, beam.ends) for beam in grown] == [
        ((7, 1), -2.0, False),
        ((8, 1), -2.5, False),
        ((7, 2), -4.0, True),
    ]


def test_a_penalty_decides_between_short_and_long_ones() -> None:
    short, long = Beam((1,), -2.0), Beam((1, 2, 3, 4), -4.0)
    assert short.score(1, 0) > long.score(1, 0)
    assert short.score(1, 2) < long.score(1, 2)


TOKENS = (65, 66, 67, 68)
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
SEARCH: Any = {"use_beam_search": True}


def likelihoods(generated: tuple[int, ...]) -> dict[int, float]:
    """How likely each token is after these: made up, and always the same."""
    chance = random.Random(repr(generated))
    weights = {token: chance.uniform(0.1, 1) for token in TOKENS}
    return {token: math.log(weight / sum(weights.values())) for token, weight in weights.items()}


def best_of_all(length: int, count: int) -> list[tuple[int, ...]]:
    def logprob(tokens: tuple[int, ...]) -> float:
        return sum(likelihoods(tokens[:place])[token] for place, token in enumerate(tokens))

    return sorted(itertools.product(TOKENS, repeat=length), key=lambda tokens: -logprob(tokens))[:count]


def plays(served: ServedGateway) -> list[Submit]:
    """Have the cluster tell these likelihoods. Returns what is submitted to it."""
    submitted = served.cluster.submitted

    def told(request: Submit) -> list[TokenLogprobs]:
        generated = tuple(request.prompt[len(submitted[0].prompt) :])
        likeliest = sorted(likelihoods(generated).items(), key=lambda pair: -pair[1])
        return [TokenLogprobs(likeliest[0][1], likeliest)]

    served.cluster.pooled = told
    return submitted


@pytest.mark.parametrize("stream", [False, True])
async def test_the_choices_are_the_likeliest_continuations(served: ServedGateway, stream: bool) -> None:
    submitted = plays(served)
    served.cluster.version = "v-1"
    asked: Any = {**CHAT, "n": 8, "logprobs": True, "top_logprobs": 1, "stream": stream, "extra_body": SEARCH}
    made = await served.client.chat.completions.create(**asked)
    if stream:
        texts = [""] * 8
        async for chunk in made:
            assert chunk.system_fingerprint == "v-1"
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = [choice.message.content for choice in made.choices]
        assert (made.usage.completion_tokens, made.system_fingerprint) == (32, "v-1")
        [first, *_] = made.choices
        told = [one.logprob for one in first.logprobs.content]
        tokens = best_of_all(4, 1)[0]
        assert told == pytest.approx([likelihoods(tokens[:place])[token] for place, token in enumerate(tokens)])
        assert all(len(one.top_logprobs) == 1 for one in first.logprobs.content)
    assert texts == [served.tokenizer.decode(tokens) for tokens in best_of_all(4, 8)]
    assert {one.max_tokens for one in submitted} == {1}
    [beginning, *_] = begun = [one.request_id for one in submitted if one.request_id.endswith("-0")]
    assert {one.follows for one in submitted} == {None, *begun[:-1]}, "each step goes where the one before it was"
    assert [one.request_id for one in submitted if one.follows is None] == [beginning]


async def test_a_beam_that_ends_is_a_choice(served: ServedGateway) -> None:
    plays(served)
    best, *_ = sorted(likelihoods(()).items(), key=lambda pair: -pair[1])
    body = {**CHAT, "extra_body": {**SEARCH, "stop_token_ids": [best[0]], "length_penalty": 0}}
    [choice] = (await served.client.chat.completions.create(**body)).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "")


async def test_one_failure_ends_the_search(served: ServedGateway) -> None:
    plays(served)
    served.cluster.finish = "error"
    with pytest.raises(openai.InternalServerError):
        await served.client.chat.completions.create(**CHAT, extra_body=SEARCH)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 11}, "n"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
    ],
)
async def test_what_does_not_go_with_it_is_refused(served: ServedGateway, more: dict[str, Any], param: str) -> None:
    status, answer = await served.post("/v1/chat/completions", {**CHAT, **SEARCH, **more})
    assert (status, answer["error"]["param"]) == (400, param)
