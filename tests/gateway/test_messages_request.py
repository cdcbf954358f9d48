"""From the body of Anthropic's clients to the chat that it asks for."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.conversation import CalledFunction, ChatMessage, ToolCall
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.messages_request import CountRequest, MessagesRequest, chat_of_messages
from livescale.services.gateway.tools import FunctionName, NamedTool

HELLO = {"role": "user", "content": "Hello"}
TEXT = {"type": "text", "text": "Yes."}
USE = {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Bonn"}}
RESULT = {"type": "tool_result", "tool_use_id": "call_0", "content": [TEXT, {"type": "text", "text": "Cold."}]}


def chat(*messages: Any, **fields: Any) -> ChatRequest:
    body = {"messages": messages or [HELLO], "max_tokens": 9, **fields}
    return chat_of_messages(msgspec.convert(body, MessagesRequest))


def test_the_system_comes_first_in_either_form() -> None:
    for system in ("Be\nbrief.", [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]):
        assert chat(system=system).messages == [
            ChatMessage(role="system", content="Be\nbrief."),
            ChatMessage(role="user", content="Hello"),
        ]


def test_what_tools_answered_comes_before_what_the_user_says_in_one_message() -> None:
    made = chat(HELLO, {"role": "assistant", "content": [TEXT, USE]}, {"role": "user", "content": [TEXT, RESULT]})
    call = ToolCall(function=CalledFunction("weather", {"city": "Bonn"}), id="call_0")
    assert made.messages[1:] == [
        ChatMessage(role="assistant", content="Yes.", tool_calls=[call]),
        ChatMessage(role="tool", content="Yes.\nCold.", tool_call_id="call_0"),
        ChatMessage(role="user", content="Yes."),
    ]


def test_thoughts_come_back_as_reasoning_and_those_that_nobody_can_read_are_left_out() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm."}, {"type": "redacted_thinking", "data": "x"}, TEXT]
    made = chat(HELLO, {"role": "assistant", "content": blocks}, HELLO)
    assert made.messages[1] == ChatMessage(role="assistant", content="Yes.", reasoning_content="Hm.")


@pytest.mark.parametrize(
    ("last", "continued"),
    [
        (HELLO, False),
        ({"role": "assistant", "content": "It is"}, True),
        ({"role": "assistant", "content": [TEXT]}, True),
        ({"role": "assistant", "content": [USE]}, False),
    ],
)
def test_a_last_message_of_the_assistant_is_continued_unless_it_calls(last: dict[str, Any], continued: bool) -> None:
    assert chat(HELLO, last).continue_final_message == continued


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [USE]}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "thinking", "thinking": "Hm."}]}, "messages[1].content"),
        ({"role": "assistant", "content": [RESULT]}, "messages[1].content"),
    ],
)
def test_a_block_in_the_other_ones_message_is_refused_by_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(HELLO, message)
    assert (refused.value.status, refused.value.detail.param) == (400, param)


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, NamedTool(function=FunctionName("weather"))),
    ],
)
def test_the_choice_of_tools_has_the_meaning_of_openais(choice: dict[str, str], asked: object) -> None:
    made = chat(tools=[{"name": "weather", "input_schema": {"type": "object"}}], tool_choice=choice)
    assert made.tool_choice == asked
    assert made.parallel_tool_calls
    assert made.tools is not None
    assert (made.tools[0].function.name, made.tools[0].function.parameters) == ("weather", {"type": "object"})
    assert not chat(tool_choice={**choice, "disable_parallel_tool_use": True}).parallel_tool_calls


def test_a_choice_of_a_tool_without_its_name_is_refused() -> None:
    with pytest.raises(ApiError, match="needs the 'name'") as refused:
        chat(tool_choice={"type": "tool"})
    assert refused.value.detail.param == "tool_choice.name"


@pytest.mark.parametrize(
    ("thinking", "thinks", "told"),
    [
        (None, False, False),
        ({"type": "disabled"}, False, False),
        ({"type": "adaptive"}, True, True),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, True, False),
    ],
)
def test_a_model_thinks_and_tells_it_only_where_it_is_asked(
    thinking: dict[str, Any] | None, thinks: bool, told: bool
) -> None:
    made = chat(thinking=thinking)
    assert made.chat_template_kwargs == {"enable_thinking": thinks}
    assert made.include_reasoning == told


def test_sampling_and_limits_are_the_clients() -> None:
    made = chat(stream=True, stop_sequences=["a"], temperature=0.5, top_p=0.25, top_k=4)
    assert (made.max_completion_tokens, made.stop, made.temperature, made.top_p, made.top_k) == (9, ["a"], 0.5, 0.25, 4)
    assert made.stream_options is not None
    assert made.stream_options.include_usage
    assert chat().stream_options is None


def test_a_count_is_of_the_same_prompt_as_the_answers() -> None:
    body = {"messages": [HELLO], "system": "Be brief.", "thinking": {"type": "adaptive"}}
    counted = chat_of_messages(msgspec.convert(body, CountRequest))
    answered = chat_of_messages(msgspec.convert({**body, "max_tokens": 9}, MessagesRequest))
    assert counted == msgspec.structs.replace(answered, max_completion_tokens=None)
