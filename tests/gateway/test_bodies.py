"""A request for a model says to the registry what its client said, and nothing else."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.bodies import (
    BoundsRequest,
    ChatRequest,
    CompletionRequest,
    ModelRequest,
    asked_logprobs,
    asked_prompt_logprobs,
    asked_tokens,
    choices,
    needed_logprobs,
    only_prompt,
)
from livescale.services.gateway.parse import parse_body
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds


def test_a_model_is_registered_with_what_was_said_of_it() -> None:
    body = parse_body(
        b'{"type": "ModelSpec", "name": "m", "min_instances": 0, "bounds": {"prefill_lo": 0}}', ModelRequest
    )
    said = body.register()
    assert said.named == ["bounds.prefill_lo", "min_instances", "name"]
    assert (said.spec.name, said.spec.min_instances, said.spec.bounds.prefill_lo) == ("m", 0, 0.0)


def test_an_entry_of_the_list_can_be_sent_back() -> None:
    spec = ModelSpec(name="m", path="/p", max_instances=2, layout="panels")
    said = parse_body(msgspec.json.encode(spec), ModelRequest).register()
    assert said.spec == spec
    assert {"path", "max_instances", "layout", "bounds.decode_hi"} <= set(said.named or [])


def test_a_request_for_a_model_has_every_field_of_its_declaration() -> None:
    # Adapters are loaded by an endpoint of their own.
    assert (*ModelRequest.__struct_fields__, "base", "base_path") == ModelSpec.__struct_fields__
    assert BoundsRequest.__struct_fields__ == ScalingBounds.__struct_fields__


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
