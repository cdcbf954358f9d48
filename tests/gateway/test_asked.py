"""What a body asks for where several parameters say it together, as OpenAI and vLLM document it."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.asked import (
    asked_logprobs,
    asked_prompt_logprobs,
    asked_tokens,
    choices,
    needed_logprobs,
    only_prompt,
)
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"messages": [{"role": "user", "content": "a"}], **fields}, ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"prompt": "a", **fields}, CompletionRequest)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (chat(), None),
        (chat(max_tokens=3), 3),
        (chat(max_tokens=3, max_completion_tokens=5), 5),
        (completion(), 16),
        (completion(max_tokens=3), 3),
        (completion(max_tokens=0, echo=True), 1),
    ],
)
def test_a_chat_is_unbounded_and_a_completion_has_openais_bound(
    body: ChatRequest | CompletionRequest, tokens: int | None
) -> None:
    assert asked_tokens(body) == tokens


def test_a_prompt_alone_is_wanted_back_where_no_token_is_asked_for() -> None:
    assert only_prompt(completion(max_tokens=0, echo=True))
    assert not only_prompt(completion(echo=True))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (chat(), None),
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=3), 3),
        (completion(), None),
        (completion(logprobs=False), None),
        (completion(logprobs=0), 0),
        (completion(logprobs=3), 3),
    ],
)
def test_either_endpoint_asks_for_log_probabilities_in_its_own_way(
    body: ChatRequest | CompletionRequest, told: int | None
) -> None:
    assert asked_logprobs(body) == told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (chat(logprobs=True, top_logprobs=3), None),
        (chat(prompt_logprobs=2), 2),
        (completion(logprobs=3), None),
        (completion(logprobs=3, echo=True), 3),
        (completion(prompt_logprobs=1, logprobs=3, echo=True), 3),
        (completion(prompt_logprobs=5, logprobs=3, echo=True), 5),
        (completion(prompt_logprobs=0), 0),
    ],
)
def test_an_echo_has_the_log_probabilities_of_its_prompt(
    body: ChatRequest | CompletionRequest, told: int | None
) -> None:
    assert asked_prompt_logprobs(body) == told


def test_choices_that_are_chosen_among_have_log_probabilities_though_no_client_asks() -> None:
    assert (choices(completion(n=2)), needed_logprobs(completion(n=2))) == (2, None)
    best = completion(n=2, best_of=4)
    assert (choices(best), needed_logprobs(best), asked_logprobs(best)) == (4, 0, None)
    assert needed_logprobs(completion(n=2, best_of=4, logprobs=3)) == 3
