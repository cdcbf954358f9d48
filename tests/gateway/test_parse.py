"""Bodies are refused by name: what is malformed, unknown, unsupported, mistyped or out of range."""

import codecs
import gzip
from typing import Any

import msgspec
import pytest

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, ModelRequest, ScaleRequest
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.parameters import REFUSED
from livescale.services.gateway.parse import allowed_values, parse_body

COMPLETION = {"model": "m", "prompt": "abc"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def refusal(body: object, type: type[msgspec.Struct]) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as refused:
        parse_body(body if isinstance(body, bytes) else msgspec.json.encode(body), type)
    assert refused.value.status == 400
    return refused.value.detail.param, refused.value.detail.code


@pytest.mark.parametrize("data", [b"", b"{", b'{"model": NaN}', b"\xff", b'{"model": "\xff"}', b"[" * 100_000])
def test_malformed_json_is_refused(data: bytes) -> None:
    assert refusal(data, CompletionRequest) == (None, "invalid_json")


@pytest.mark.parametrize("data", [b"[]", b'"text"', b"null"])
def test_a_body_that_is_no_object_is_refused(data: bytes) -> None:
    assert refusal(data, CompletionRequest) == (None, None)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": 1}, "model"),
        ({"prompt": 1.5}, "prompt"),
        ({"prompt": [1, "a", [2.5]]}, "prompt[2][0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"echo": 1}, "echo"),
        ({"max_tokens": "12"}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(id): 1 for id in range(1025)}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["a"] * 257}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"timeout": 0}, "timeout"),
        ({"prompt_cache_key": ""}, "prompt_cache_key"),
        ({"prompt_cache_key": "k" * 65}, "prompt_cache_key"),
        ({"prompt_cache_key": 7}, "prompt_cache_key"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_wrong_values_are_refused_by_name(changes: dict[str, object], param: str) -> None:
    assert refusal({**COMPLETION, **changes}, CompletionRequest) == (param, "invalid_value")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": [{"role": "user", "content": "a", "type": "image"}]}, "messages[0].type"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"documents": [{"title": 1}]}, "documents[0][...]"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
    ],
)
def test_wrong_messages_are_refused_by_their_place(changes: dict[str, object], param: str) -> None:
    assert refusal({**CHAT, **changes}, ChatRequest) == (param, "invalid_value")


def test_unknown_parameters_are_refused_by_name() -> None:
    assert refusal({**COMPLETION, "temprature": 1}, CompletionRequest) == ("temprature", "unknown_parameter")
    inside = {**COMPLETION, "stream_options": {"usage": 1}}
    assert refusal(inside, CompletionRequest) == ("stream_options.usage", "invalid_value")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suffix", "end"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(name: str, value: object) -> None:
    assert refusal({**COMPLETION, name: value}, CompletionRequest) == (name, "unsupported_parameter")


def test_a_tool_without_a_function_is_refused_by_its_place() -> None:
    assert refusal({**CHAT, "tools": [{"type": "function"}]}, ChatRequest) == ("tools[0].function", "invalid_value")


@pytest.mark.parametrize(("type", "body"), [(CompletionRequest, COMPLETION), (ChatRequest, CHAT)])
def test_values_that_ask_for_nothing_are_accepted(type: type[msgspec.Struct], body: dict[str, object]) -> None:
    for name, refused in REFUSED[type].items():
        for value in (None, *refused.neutral):
            parse_body(msgspec.json.encode({**body, name: value}), type)


def test_null_is_the_same_as_absent() -> None:
    names = [field.encode_name for field in msgspec.structs.fields(CompletionRequest)]
    nulls = {name: None for name in names if name not in COMPLETION}
    body = parse_body(msgspec.json.encode({**COMPLETION, **nulls}), CompletionRequest)
    assert body == CompletionRequest(**COMPLETION)  # type: ignore[arg-type]


def test_an_answers_message_may_be_sent_back_as_it_came() -> None:
    nothing: dict[str, object] = dict.fromkeys(("refusal", "tool_calls", "audio"))
    said = {"role": "assistant", "content": "hi", "annotations": [], **nothing}
    body = parse_body(msgspec.json.encode({**CHAT, "messages": [*CHAT["messages"], said]}), ChatRequest)
    assert body.messages[1].content == "hi"


def test_variables_of_the_template_stay_as_they_are() -> None:
    variables = {"enable_thinking": False, "names": [], "none": None}
    body = parse_body(msgspec.json.encode({**CHAT, "chat_template_kwargs": variables}), ChatRequest)
    assert body.chat_template_kwargs == variables


def test_token_ids_are_keys_in_json() -> None:
    body = parse_body(msgspec.json.encode({**COMPLETION, "logit_bias": {"5": 1, "7": -0.5}}), CompletionRequest)
    assert body.logit_bias == {5: 1.0, 7: -0.5}


def test_every_key_of_logit_bias_that_is_no_token_id_is_named() -> None:
    with pytest.raises(ApiError) as refused:
        parse_body(msgspec.json.encode({**COMPLETION, "logit_bias": {"bad1": 1, "7": 1, "-2": 1}}), CompletionRequest)
    assert refused.value.detail.param == "logit_bias"
    assert refused.value.detail.message.endswith("'bad1', '-2' (parameter 'logit_bias').")
    long = msgspec.json.encode({**COMPLETION, "logit_bias": {f"{number:x<5000}": 1 for number in range(1_000)}})
    with pytest.raises(ApiError) as many:
        parse_body(long, CompletionRequest)
    assert len(many.value.detail.message) < 600


def test_whole_numbers_are_numbers() -> None:
    body = parse_body(msgspec.json.encode({**COMPLETION, "temperature": 1, "timeout": 5}), CompletionRequest)
    assert (body.temperature, body.timeout) == (1.0, 5.0)


def test_admin_bodies_are_checked_as_well() -> None:
    assert refusal({"model": "m", "instances": -1}, ScaleRequest) == ("instances", "invalid_value")
    assert refusal({"path": "/p"}, ModelRequest) == ("name", "invalid_value")
    assert refusal({"name": "m", "path": "/p", "max_instances": 0}, ModelRequest) == ("max_instances", "invalid_value")
    assert refusal({"name": "m", "path": "/p", "bounds": {"prefil_hi": 1}}, ModelRequest) == (
        "bounds.prefil_hi",
        "unknown_parameter",
    )


def test_a_byte_order_mark_says_nothing_and_other_encodings_are_named() -> None:
    body = msgspec.json.encode(COMPLETION)
    assert parse_body(codecs.BOM_UTF8 + body, CompletionRequest).prompt == "abc"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        with pytest.raises(ApiError, match=r"The body is UTF-(16|32).*; JSON is sent as UTF-8") as refused:
            parse_body(body.decode().encode(encoding), CompletionRequest)
        assert (refused.value.status, refused.value.detail.code) == (400, "invalid_json")


def test_a_body_with_bytes_of_another_encoding_is_called_that() -> None:
    with pytest.raises(ApiError, match="bytes that are not UTF-8") as refused:
        parse_body(b'{"model": "m", "prompt": "\xe4"}', CompletionRequest)
    assert refused.value.detail.code == "invalid_json"


def test_a_body_that_is_compressed_without_saying_so_is_called_that() -> None:
    with pytest.raises(ApiError, match="compressed by gzip; send it as plain JSON"):
        parse_body(gzip.compress(b'{"model": "m", "prompt": "a"}'), CompletionRequest)


def test_a_null_that_has_to_be_given_is_called_null() -> None:
    for type, name in ((CompletionRequest, "prompt"), (ChatRequest, "messages")):
        with pytest.raises(ApiError, match=f"'{name}' is null; give it a value") as refused:
            parse_body(msgspec.json.encode({"model": "m", name: None}), type)
        assert refused.value.detail.param == name


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "input_audio"}])
def test_images_and_sounds_are_refused_as_such(part: dict[str, Any]) -> None:
    said = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, part]}
    with pytest.raises(ApiError, match=f"Only text is understood: a part of type '{part['type']}' is not") as refused:
        parse_body(msgspec.json.encode({**CHAT, "messages": [said]}), ChatRequest)
    assert refused.value.detail.param == "messages[0].content[1].type"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("messages[0].role", ["assistant", "developer", "system", "tool", "user"]),
        ("tool_choice", ["auto", "none", "required"]),
        ("tools[0].type", ["function"]),
        ("response_format.type", ["text", "json_object", "json_schema"]),
        ("temperature", []),
        ("messages[0].nothing", []),
        ("", []),
    ],
)
def test_values_are_found_where_they_are_a_few(path: str, allowed: list[str]) -> None:
    assert allowed_values(ChatRequest, path) == allowed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tool_choice": "maybe"}, "it is one of 'auto', 'none', 'required' (parameter 'tool_choice')."),
        ({"response_format": {"type": "xml"}}, "it is one of 'text', 'json_object', 'json_schema'"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "one of 'assistant', 'developer', 'system', 'tool'"),
    ],
)
def test_an_error_about_one_of_a_few_tells_them(wrong: dict[str, Any], message: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], **wrong}
    with pytest.raises(ApiError) as refused:
        parse_body(msgspec.json.encode(body), ChatRequest)
    assert message in refused.value.detail.message
