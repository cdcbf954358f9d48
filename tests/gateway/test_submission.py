"""From a body to what the router is asked."""

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest
from livescale.services.gateway.checkpoint_text import CheckpointText, GenerationDefaults
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.submission import (
    Origin,
    choice_seed,
    make_submit,
    split_prompts,
    truncated,
)
from livescale.shared.messages.requests import PromptLogprobs, Submit

ORIGIN = Origin("req-1", "gateway-0", deadline=100.0)
TEXT = CheckpointText(
    tokenizer=Tokenizer(BPE()),
    template=None,
    eos_token_ids=(2,),
    vocab_size=50,
    defaults=GenerationDefaults(0.7, 0.9, 20),
)
HELLO = [ChatMessage(role="user", content="hello")]


def completion(**options: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": "m", "prompt": "abc", **options})


def submit(body: CompletionRequest | ChatRequest, prompt: list[int]) -> Submit:
    return make_submit(body, prompt, TEXT, 10, ORIGIN)


def code_of(error: pytest.ExceptionInfo[ApiError]) -> tuple[str | None, str | None]:
    return error.value.detail.param, error.value.detail.code


def test_the_clients_sampling_goes_before_the_checkpoints() -> None:
    sampling = submit(completion(max_tokens=1), [1]).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 20)
    sampling = submit(completion(max_tokens=1, temperature=0, top_p=1, top_k=-1, seed=-5), [1]).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0, 1, 0, -5)


def test_the_key_of_a_conversation_is_passed_on() -> None:
    assert submit(completion(max_tokens=1, prompt_cache_key="talk"), [1]).context_id == "talk"
    assert submit(completion(max_tokens=1), [1]).context_id is None


def test_a_seed_is_always_filled_and_differs_between_requests() -> None:
    other = make_submit(completion(max_tokens=1), [1], TEXT, 10, Origin("req-2", "gateway-0", 1.0))
    assert 0 <= submit(completion(max_tokens=1), [1]).sampling.seed != other.sampling.seed < 2**63


def test_max_tokens_is_what_is_asked_or_what_fits() -> None:
    assert submit(completion(max_tokens=7), [1, 2, 3]).max_tokens == 7
    assert submit(ChatRequest(model="m", messages=HELLO), [1, 2, 3]).max_tokens == 7
    assert submit(ChatRequest(model="m", messages=HELLO, max_tokens=9, max_completion_tokens=2), [1]).max_tokens == 2


def test_a_chat_that_names_no_number_of_tokens_is_open_ended_and_a_completion_never_is() -> None:
    assert submit(ChatRequest(model="m", messages=HELLO), [1]).open_ended
    assert not submit(ChatRequest(model="m", messages=HELLO, max_tokens=5), [1]).open_ended
    assert not make_submit(completion(), [1], TEXT, 100, ORIGIN).open_ended


@pytest.mark.parametrize(("length", "max_tokens"), [(10, 1), (11, 1), (5, 6), (1, 10), (1, None)])
def test_what_does_not_fit_the_context_is_refused(length: int, max_tokens: int | None) -> None:
    with pytest.raises(ApiError, match="maximum context length is 10") as refused:
        submit(completion(max_tokens=max_tokens), [1] * length)
    assert code_of(refused) == ("prompt", "context_length_exceeded")


def test_a_chat_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        submit(ChatRequest(model="m", messages=HELLO), [1] * 10)
    assert code_of(refused) == ("messages", "context_length_exceeded")


def test_a_chat_cannot_have_more_tokens_before_its_end_than_there_is_room_for() -> None:
    assert submit(ChatRequest(model="m", messages=HELLO, min_tokens=9), [1]).min_tokens == 9
    with pytest.raises(ApiError, match="there is room for 9 tokens") as refused:
        submit(ChatRequest(model="m", messages=HELLO, min_tokens=10**30), [1])  # more than a message can say
    assert refused.value.detail.param == "min_tokens"


def test_token_ids_outside_the_vocabulary_and_empty_prompts_are_refused() -> None:
    with pytest.raises(ApiError, match="token id 50; the vocabulary has ids below 50"):
        submit(completion(max_tokens=1), [49, 50])
    with pytest.raises(ApiError, match="'prompt' has no tokens"):
        submit(completion(max_tokens=1), [])


def test_prompts_are_texts_or_token_ids() -> None:
    assert split_prompts(completion(prompt="a").prompt, 3) == ["a"]
    assert split_prompts(completion(prompt=["a", "b"]).prompt, 3) == ["a", "b"]
    assert split_prompts(completion(prompt=[1, 2]).prompt, 3) == [[1, 2]]
    assert split_prompts(completion(prompt=[[1], [2, 3]]).prompt, 3) == [[1], [2, 3]]
    for wrong in ([], [1, "a"], [1, [2]], ["a", [1]], ["a"] * 4):
        with pytest.raises(ApiError) as refused:
            split_prompts(completion(prompt=wrong).prompt, 3)
        assert refused.value.detail.param == "prompt"


def test_what_a_body_says_of_sampling_is_passed_on() -> None:
    options: dict[str, Any] = {
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "allowed_token_ids": [1, 2, 3],
    }
    sampling = submit(completion(max_tokens=1, logit_bias={3: 1.5}, **options), [1]).sampling
    assert {name: getattr(sampling, name) for name in options} == options
    assert sampling.logit_bias == [(3, 1.5)]


def test_stop_tokens_are_those_of_the_checkpoint_and_those_of_the_body() -> None:
    assert submit(completion(max_tokens=1, stop_token_ids=[7, 2, 7]), [1]).stop_token_ids == [2, 7]
    assert submit(completion(max_tokens=1, stop_token_ids=[7], ignore_eos=True), [1]).stop_token_ids == [7]


def test_log_probabilities_are_asked_for_where_clients_or_best_of_need_them() -> None:
    chat: dict[str, Any] = {"model": "m", "messages": HELLO, "max_tokens": 1}
    for body, count in (
        (completion(max_tokens=1), None),
        (completion(max_tokens=1, logprobs=0), 0),
        (completion(max_tokens=1, logprobs=False), None),
        (completion(max_tokens=1, best_of=2), 0),
        (completion(max_tokens=1, best_of=2, n=2), None),
        (ChatRequest(**chat), None),
        (ChatRequest(**chat, logprobs=True), 0),
        (ChatRequest(**chat, logprobs=True, top_logprobs=4), 4),
    ):
        assert submit(body, [1]).sampling.logprobs == count


def test_log_probabilities_of_prompts_are_asked_for_by_name_or_by_echo() -> None:
    for body, top in (
        (completion(logprobs=2), None),
        (completion(echo=True), None),
        (completion(echo=True, logprobs=2, max_tokens=0), 2),
        (completion(prompt_logprobs=0), 0),
        (completion(prompt_logprobs=1, echo=True, logprobs=3), 3),
    ):
        submitted = make_submit(body, [1, 2], TEXT, 100, ORIGIN)
        assert submitted.prompt_logprobs == (None if top is None else PromptLogprobs(top=top))
    assert make_submit(completion(echo=True, max_tokens=0), [1], TEXT, 100, ORIGIN).max_tokens == 1
    with pytest.raises(ApiError, match="with 20 of the likeliest there may be 1428") as refused:
        make_submit(completion(prompt_logprobs=20), [1] * 1_429, TEXT, 9_999, ORIGIN)
    assert refused.value.detail.param == "prompt_logprobs"


def test_each_choice_has_a_seed_of_its_own_and_the_first_the_requests() -> None:
    seeds = [choice_seed(5, choice) for choice in range(20)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 20
    assert choice_seed(5, 3) == seeds[3] != choice_seed(6, 3)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"logit_bias": {50: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [50]}, "allowed_token_ids"),
        ({"stop_token_ids": [50]}, "stop_token_ids"),
        ({"min_tokens": 1, "allowed_token_ids": [2, 7], "stop_token_ids": [7]}, "allowed_token_ids"),
    ],
)
def test_tokens_that_cannot_be_meant_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        submit(completion(max_tokens=2, **options), [1])
    assert refused.value.detail.param == param


def test_a_prompt_is_cut_at_either_end() -> None:
    prompt = list(range(10))
    assert truncated(completion(), prompt, 8) == prompt
    assert truncated(completion(truncate_prompt_tokens=12), prompt, 8) == prompt
    assert truncated(completion(truncate_prompt_tokens=3), prompt, 8) == [7, 8, 9]
    assert truncated(completion(truncate_prompt_tokens=3, truncation_side="right"), prompt, 8) == [0, 1, 2]
    assert truncated(completion(truncate_prompt_tokens=-1, max_tokens=2), prompt, 8) == prompt[4:]
    assert truncated(completion(truncate_prompt_tokens=-1, max_tokens=9), prompt, 8) == []
    with pytest.raises(ApiError, match="'truncate_prompt_tokens' is 0; give at least 1, or -1"):
        truncated(completion(truncate_prompt_tokens=0), prompt, 8)


def test_a_salt_is_the_clients_own() -> None:
    def salt(client: str, given: str | None) -> str | None:
        origin = Origin("req-1", "gateway-0", 1.0, client=client)
        return make_submit(completion(cache_salt=given), [1], TEXT, 100, origin).cache_salt

    assert salt("alice", None) is None
    assert salt("alice", "s") == salt("alice", "s")
    assert len({salt("alice", "s"), salt("bob", "s"), salt("alice", "t"), salt("alices", ""), salt("", "alices")}) == 5


def test_named_tokens_are_told_with_log_probabilities() -> None:
    asked = submit(completion(max_tokens=1, logprobs=1, logprob_token_ids=[7, 9]), [1])
    assert asked.sampling.logprob_token_ids == [7, 9]
    with pytest.raises(ApiError, match="token id 50"):
        submit(completion(max_tokens=1, logprobs=1, logprob_token_ids=[50]), [1])
