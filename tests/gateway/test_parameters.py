"""Every parameter of OpenAI's and vLLM's is right, ignored or refused by name, as the table of the docs says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest
from livescale.services.gateway.messages_request import MessagesRequest
from livescale.services.gateway.parameters import IGNORED, REFUSED
from livescale.services.gateway.responses_request import LOGPROBS, ResponsesRequest
from tests.gateway.conftest import ServedGateway, serve_gateway

COMMON = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options temperature
top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words add_special_tokens
response_format structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_mm_kwargs mm_payload cache_salt kv_transfer_params
ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval echo
"""
OF_CHATS = """
messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning parallel_tool_calls
add_generation_prompt continue_final_message documents chat_template chat_template_kwargs media_io_kwargs
mm_processor_kwargs return_prompt_text audio function_call functions metadata modalities moderation prediction
prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier store verbosity
web_search_options
"""
OF_COMPLETIONS = "prompt prompt_embeds best_of suffix"
OF_RESPONSES = """
access_programs background background_options context_management conversation image include input instructions
max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt
prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream
stream_options temperature text tool_choice tools top_logprobs top_p truncation user
"""
OF_MESSAGES = """
cache_control container diagnostics inference_geo max_tokens messages metadata model output_config service_tier speed
stop_sequences stream system temperature thinking tool_choice tools top_k top_p
"""
# A value of each parameter that is understood. What another has to say first comes with it.
VALUES: Mapping[str, Any] = {
    "model": "tiny",
    "prompt": "abc",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "tool", "content": "b"}],
    "n": 2,
    "best_of": 2,
    "seed": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 1},
    "bad_words": ["bad"],
    "allowed_token_ids": [65],
    "stop": ["a", "b", "c", "d", "e"],
    "stop_token_ids": [70],
    "include_stop_str_in_output": True,
    "min_tokens": 1,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "max_tokens": 3,
    "max_completion_tokens": 2,  # as `max_tokens` of the bodies below
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "logprobs": 0,
    "prompt_logprobs": 1,
    "echo": True,
    "top_logprobs": 2,
    "truncate_prompt_tokens": 1,
    "truncation_side": "right",
    "return_tokens_as_token_ids": True,
    "return_token_ids": True,
    "logprob_token_ids": [65, 70],
    "stream_interval": 2,
    "request_id": "mine",
    "cache_salt": "salt",
    "return_prompt_text": True,
    "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "prompt_cache_key": "talk",
    "priority": 1,
    "timeout": 5,
    "add_special_tokens": False,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "documents": [{"title": "a", "text": "b"}],
    "reasoning_effort": "low",
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "include_reasoning": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "one", "schema": {"type": "integer"}}},
    "structured_outputs": {"regex": "[a-z]{3}", "whitespace_pattern": None},
    "guided_json": '{"type": "boolean"}',
    "guided_regex": "a+",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'start: "a" | "b"',
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}]}],
    "instructions": "Be brief.",
    "previous_response_id": "",  # of one that is made for it
    "store": False,
    "background": True,
    "max_output_tokens": 2,
    "include": [LOGPROBS, "reasoning.encrypted_content"],
    "truncation": "auto",
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "generate_summary": "auto", "context": "auto", "mode": "standard"},
    "metadata": {"a": "b"},
    "repetition_detection": {"max_pattern_size": 2, "min_count": 2},
    "use_beam_search": True,
    "length_penalty": 0.5,
    "return_token_offsets": True,
    "return_mm_kwargs": False,
    "mm_payload": "none",
    "session_id": "s" * 100,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "stop_sequences": ["never"],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
}
OTHER_VALUES: Mapping[type, Mapping[str, Any]] = {
    MessagesRequest: {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "tool_choice": {"type": "none"},
    },
    ResponsesRequest: {"tools": [{"type": "function", "name": "f"}]},
}
NEEDED: Mapping[str, Mapping[str, object]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "length_penalty": {"use_beam_search": True},
    "logprob_token_ids": {"logprobs": True},
}
NEEDED_OF_RESPONSES: Mapping[str, Mapping[str, object]] = {
    "top_logprobs": {"include": [LOGPROBS]},
    "tools": {"tool_choice": "none"},
}
ENDPOINTS = {
    CompletionRequest: (
        "/v1/completions",
        {"model": "tiny", "prompt": "abc", "max_tokens": 2},
        COMMON + OF_COMPLETIONS,
    ),
    ChatRequest: (
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
        COMMON + OF_CHATS,
    ),
    MessagesRequest: (
        "/v1/messages",
        {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
        OF_MESSAGES,
    ),
    ResponsesRequest: ("/v1/responses", {"model": "tiny", "input": "abc", "max_output_tokens": 2}, OF_RESPONSES),
}
TYPES = pytest.mark.parametrize("type", ENDPOINTS)


def fields(type: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(type)]


def wish(neutral: tuple[object, ...]) -> object:
    """A value that asks for something."""
    return next(value for value in (True, "something") if value not in neutral)


@TYPES
def test_what_becomes_of_every_parameter_is_said_once(type: type[msgspec.Struct]) -> None:
    known = [*fields(type), *IGNORED[type], *REFUSED[type]]
    assert len(known) == len(set(known))
    assert set(ENDPOINTS[type][2].split()) <= set(known)


@TYPES
async def test_every_parameter_that_is_understood_is_answered(checkpoint: Path, type: type[msgspec.Struct]) -> None:
    path, body, _ = ENDPOINTS[type]
    async with serve_gateway(checkpoint, trust_request_chat_template=True) as served:
        _, earlier = await served.post("/v1/responses", ENDPOINTS[ResponsesRequest][1])
        values = {**VALUES, **OTHER_VALUES.get(type, {})}
        for name in fields(type):
            value = earlier["id"] if name == "previous_response_id" else values[name]
            needs = NEEDED_OF_RESPONSES if type is ResponsesRequest else NEEDED
            needed = {**needs.get(name, {}), name: value}
            if "logprobs" in needed:
                needed["logprobs"] = True if type is ChatRequest else 0
            async with served.http.post(served.url + path, json={**body, **needed}) as answer:
                text = await answer.text()
                assert answer.status == 200, (name, text)
                assert '"error":{' not in text, (name, text)


@TYPES
async def test_every_other_parameter_is_ignored_or_refused_by_name(
    served: ServedGateway, type: type[msgspec.Struct]
) -> None:
    path, body, _ = ENDPOINTS[type]
    for name in IGNORED[type]:
        status, answer = await served.post(path, {**body, name: "anything"})
        assert status == 200, (name, answer)
    for name, refused in REFUSED[type].items():
        status, answer = await served.post(path, {**body, name: wish(refused.neutral)})
        assert (status, answer["error"].get("param", name)) == (400, name)
        assert repr(name) in answer["error"]["message"]
        assert refused.reason in answer["error"]["message"]
