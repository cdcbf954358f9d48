"""What contradicts itself in a body, or is too much, is refused by name."""

from typing import Any

import pytest

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, StreamOptions
from livescale.services.gateway.checks import check_choices, check_options
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError

HELLO = [ChatMessage(role="user", content="hello")]


def completion(**options: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": "m", "prompt": "abc", **options})


def test_a_request_has_a_bounded_number_of_choices() -> None:
    check_choices(completion(n=4), 2, 8)
    for body, param in ((completion(n=4), "n"), (completion(n=1, best_of=4), "best_of")):
        with pytest.raises(ApiError, match="asks for 12 choices; a request may have at most 8") as refused:
            check_choices(body, 3, 8)
        assert refused.value.detail.param == param


def test_options_that_contradict_each_other_are_refused() -> None:
    check_options(completion(stream=True, stream_options=StreamOptions()))
    check_options(ChatRequest(model="m", messages=HELLO, max_tokens=2, max_completion_tokens=2))
    for body, param in (
        (completion(stream_options=StreamOptions()), "stream_options"),
        (completion(min_tokens=17), "min_tokens"),
        (completion(n=3, best_of=2), "best_of"),
        (completion(n=1, best_of=2, stream=True), "best_of"),
        (completion(logprobs=True), "logprobs"),
        (completion(max_tokens=0), "max_tokens"),
        (completion(logprob_token_ids=[5]), "logprob_token_ids"),
        (completion(stop=["s" * 1_000] * 5), "stop"),
        (completion(prompt_logprobs=1, stream=True), "prompt_logprobs"),
        (ChatRequest(model="m", messages=HELLO, top_logprobs=2), "top_logprobs"),
        (
            ChatRequest(model="m", messages=HELLO, add_generation_prompt=True, continue_final_message=True),
            "continue_final_message",
        ),
        (
            ChatRequest(model="m", messages=HELLO, chat_template_kwargs={"messages": []}),
            "chat_template_kwargs.messages",
        ),
        (ChatRequest(model="m", messages=HELLO, min_tokens=3, max_completion_tokens=2), "min_tokens"),
        (ChatRequest(model="m", messages=HELLO, max_tokens=3, max_completion_tokens=2), "max_tokens"),
    ):
        with pytest.raises(ApiError) as refused:
            check_options(body)
        assert refused.value.detail.param == param
