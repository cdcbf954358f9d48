from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.tools import (
    LARGEST_SCHEMA,
    FunctionDefinition,
    FunctionName,
    NamedTool,
    Tool,
    check_tools,
    parameter_types,
)
from livescale.shared.messages.model_spec import ReasoningParser, ToolCallParser
from tests.checkpoints import token_id
from tests.gateway.conftest import ServedGateway

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
IMPOSSIBLE = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": False}, "required": ["a"]}},
}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Is it warm?"}], "tools": [WEATHER]}
CALL = 'Yes.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
ANOTHER = '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"city": "Bonn"}'


def tool(name: str = "f", parameters: dict[str, Any] | None = None) -> Tool:
    return Tool(function=FunctionDefinition(name=name, parameters=parameters))


def writes(served: ServedGateway, calls: ToolCallParser | None, reasoning: ReasoningParser | None = None) -> str:
    """The name of another model, whose operator says how it writes."""
    first = served.cluster.models[0]
    name = f"{calls}-{reasoning}"
    spec = replace(first.spec, name=name, tool_call_parser=calls, reasoning_parser=reasoning)
    served.cluster.models.append(replace(first, spec=spec))
    return name


def says(served: ServedGateway, text: str) -> int:
    """Have the model generate this text and end there. Returns how many tokens that takes."""
    served.says(text)
    served.cluster.output.append(token_id(served.tokenizer, "<|im_end|>"))
    return len(served.cluster.output)


async def test_calls_of_an_answer_are_told(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    tokens = says(served, CALL + ANOTHER)
    answer = await served.client.chat.completions.create(**{**CHAT, "model": model})
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Yes."
    calls = choice.message.tool_calls or []
    assert [(one.function.name, one.function.arguments) for one in calls] == [("weather", ARGUMENTS), ("clock", "{}")]
    assert len({one.id for one in calls}) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == tokens
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


async def test_an_answer_of_calls_alone_has_no_content(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    says(served, CALL.removeprefix("Yes."))
    status, answer = await served.post("/v1/chat/completions", {**CHAT, "model": model})
    message = answer["choices"][0]["message"]
    assert (status, message["content"]) == (200, None)
    assert message["reasoning"] is None


@pytest.mark.parametrize("tokens_per_frame", [1, 3, 100])
async def test_a_stream_begins_each_call_with_its_id_and_name(served: ServedGateway, tokens_per_frame: int) -> None:
    model = writes(served, "hermes", "think")
    served.cluster.tokens_per_frame = tokens_per_frame
    says(served, f"<think>Warm.</think>{CALL}{ANOTHER}")
    stream = await served.client.chat.completions.create(**{**CHAT, "model": model}, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Yes."
    assert "".join(chunk.delta.model_dump().get("reasoning") or "" for chunk in chunks) == "Warm."
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    for index, (name, arguments) in enumerate((("weather", ARGUMENTS), ("clock", "{}"))):
        first, *rest = [call for call in calls if call.index == index]
        assert first.id
        assert first.function is not None
        assert (first.type, first.function.name) == ("function", name)
        assert all((call.id, call.type, call.function and call.function.name) == (None, None, None) for call in rest)
        assert "".join(call.function.arguments or "" for call in (first, *rest) if call.function) == arguments
    assert [chunk.finish_reason for chunk in chunks][-1] == "tool_calls"


async def test_a_token_has_one_entry_of_log_probabilities_though_its_text_is_held_back(served: ServedGateway) -> None:
    model = writes(served, "hermes", "think")
    tokens = says(served, f"<think>Warm.</think>{CALL}")
    asked = {**CHAT, "model": model, "logprobs": True, "seed": 3}
    stream = await served.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    told = [
        one for chunk in chunks for choice in chunk.choices if choice.logprobs for one in choice.logprobs.content or []
    ]
    whole = await served.client.chat.completions.create(**asked)
    assert whole.choices[0].logprobs is not None
    assert [one.logprob for one in told] == [one.logprob for one in whole.choices[0].logprobs.content or []]
    assert len(told) == tokens
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    details = whole.usage.completion_tokens_details
    text = served.tokenizer.encode("Warm.</think>", add_special_tokens=False).ids
    assert details is not None
    assert details.reasoning_tokens == len(text)


async def test_ids_of_calls_follow_from_the_request(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    says(served, CALL)

    async def ids(**more: Any) -> list[str]:
        answer = await served.client.chat.completions.create(**{**CHAT, "model": model, **more})
        return [one.id for choice in answer.choices for one in choice.message.tool_calls or []]

    assert await ids(seed=5) == await ids(seed=5)
    assert await ids(seed=5) != await ids(seed=6)
    header = {"extra_headers": {"x-request-id": "mine"}}
    assert await ids(**header) == await ids(**header)
    assert len(set(await ids(seed=5, n=2))) == 2
    longer = [*CHAT["messages"], {"role": "user", "content": "And now?"}]
    assert await ids(seed=5) != await ids(seed=5, messages=longer)


async def test_ids_of_calls_stay_when_the_request_moves_to_another_worker(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    says(served, CALL)
    whole = await served.client.chat.completions.create(**{**CHAT, "model": model, "seed": 5})
    served.cluster.lost_at = {2: 20}
    again = await served.client.chat.completions.create(**{**CHAT, "model": model, "seed": 5})
    assert len(served.cluster.submitted) == 3
    assert again.choices[0].message == whole.choices[0].message


async def test_a_client_may_want_one_call_and_no_reasoning(served: ServedGateway) -> None:
    model = writes(served, "hermes", "think")
    says(served, f"<think>Warm.</think>{CALL}{ANOTHER}")
    more = {"parallel_tool_calls": False, "include_reasoning": False}
    _, answer = await served.post("/v1/chat/completions", {**CHAT, "model": model, **more})
    message = answer["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]
    assert message["reasoning"] is None


@pytest.mark.parametrize(
    ("choice", "text", "reason"),
    [
        ("required", f'[{{"name": "weather", "parameters": {ARGUMENTS}}}]', "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, ARGUMENTS, "stop"),
    ],
)
async def test_an_answer_that_has_to_call_is_a_call(
    served: ServedGateway, choice: object, text: str, reason: str
) -> None:
    model = writes(served, None, "think")
    says(served, f"<think>Warm.</think>\n\n{text}")
    asked = {**CHAT, "model": model, "tool_choice": choice}
    whole = (await served.client.chat.completions.create(**asked)).choices[0]
    assert served.cluster.submitted[-1].sampling.grammar
    assert (whole.finish_reason, whole.message.content) == (reason, None)
    [call] = whole.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
    chunks = [chunk.choices[0] async for chunk in await served.client.chat.completions.create(**asked, stream=True)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert "".join(call.function.arguments or "" for call in calls if call.function) == ARGUMENTS
    assert chunks[-1].finish_reason == reason


async def test_calls_of_a_strict_tool_are_held_to_its_schema(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    says(served, CALL)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    answer = await served.client.chat.completions.create(**{**CHAT, "model": model, "tools": [strict]})
    assert served.cluster.submitted[-1].sampling.grammar
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("formed", [False, True])
async def test_an_answer_of_a_form_is_content_though_the_prompt_opens_the_reasoning(
    served: ServedGateway, formed: bool
) -> None:
    model = writes(served, None, "think")
    says(served, ARGUMENTS)
    opened: dict[str, Any] = {
        "model": model,
        "messages": [*CHAT["messages"], {"role": "assistant", "content": "<think>"}],
        "extra_body": {"continue_final_message": True, "add_generation_prompt": False},
    }
    form: dict[str, Any] = {"response_format": {"type": "json_object"}} if formed else {}
    message = (await served.client.chat.completions.create(**opened, **form)).choices[0].message
    assert message.content == (ARGUMENTS if formed else None)


async def test_without_tools_a_call_is_text(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    says(served, CALL)
    for name, value in (("tools", []), ("tool_choice", "none")):
        _, answer = await served.post("/v1/chat/completions", {**CHAT, "model": model, name: value})
        assert answer["choices"][0]["message"]["content"] == CALL
        assert "tool_calls" not in answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_call_that_is_cut_off_says_so(served: ServedGateway) -> None:
    model = writes(served, "hermes")
    tokens = says(served, CALL)
    answer = await served.client.chat.completions.create(**{**CHAT, "model": model, "max_tokens": tokens - 12})
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "magic", "function": {"name": "a"}}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [IMPOSSIBLE]}, "tools"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
async def test_bad_tools_are_refused_by_name(served: ServedGateway, more: dict[str, Any], param: str) -> None:
    model = writes(served, "hermes")
    status, answer = await served.post("/v1/chat/completions", {**CHAT, "model": model, **more})
    assert (status, answer["error"]["param"]) == (400, param)
    assert not served.cluster.submitted


async def test_tools_are_refused_where_nobody_knows_how_the_model_calls_them(served: ServedGateway) -> None:
    status, answer = await served.post("/v1/chat/completions", CHAT)
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "tool_call_parser" in answer["error"]["message"]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"type": "string"}, ".type"),
        ({"properties": []}, ".properties"),
        ({"properties": {"a": 1}}, ".properties.a"),
        ({"properties": {"a": {"type": "text"}}}, ".properties.a.type"),
        ({"properties": {"a": {"anyOf": [{"enum": []}]}}}, ".properties.a.anyOf[0].enum"),
        ({"required": "a"}, ".required"),
        ({"required": [1]}, ".required"),
        ({"properties": {"a": {"items": 5}}}, ".properties.a.items"),
        ({"description": "x" * LARGEST_SCHEMA}, ""),
        (nested(40), ".properties.a" * 32),
    ],
)
def test_parameters_that_are_no_schema_are_refused(parameters: dict[str, Any], path: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_tools([tool("g"), tool(parameters=parameters)], None)
    assert (refused.value.status, refused.value.detail.param) == (400, f"tools[1].function.parameters{path}")


def test_tools_that_are_right_pass() -> None:
    check_tools(None, None)
    check_tools([], "none")
    check_tools([tool("a-b_C9"), tool("g", {"type": "object", "additionalProperties": False})], "auto")
    check_tools([tool("f", nested(10))], NamedTool(function=FunctionName("f")))
    with pytest.raises(ApiError) as refused:
        check_tools([tool(f"f{index}", {"description": "x" * 60_000}) for index in range(5)], None)
    assert refused.value.detail.param == "tools"


def test_types_of_parameters_are_gathered() -> None:
    city, size = {"type": "string"}, {"anyOf": [{"type": ["integer", "number"]}, {"type": "null"}]}
    types = parameter_types([tool("f", {"properties": {"city": city, "size": size, "any": True}}), tool("g")])
    assert types == {
        "f": {"city": {"string"}, "size": {"integer", "number", "null"}, "any": frozenset()},
        "g": {},
    }
