"""Items of an input become the messages of a chat."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.options import JsonObjectFormat, JsonSchemaFormat, NamedSchema, TextFormat
from livescale.services.gateway.parse import parse_body
from livescale.services.gateway.responses_request import ResponsesRequest, chat_of, messages_of, typed_items

SAID = {"type": "output_text", "text": "I look.", "annotations": []}


def parsed(**fields: Any) -> ResponsesRequest:
    return parse_body(msgspec.json.encode({"model": "m", **fields}), ResponsesRequest, typed_items)


def test_calls_and_what_they_answered_are_told_as_in_chats() -> None:
    body = parsed(
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "id": "rs-1", "summary": []},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "here"}'},
            {"type": "function_call", "call_id": "c2", "name": "look"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ]
    )
    asked, called, answered = messages_of(body.input)
    assert (asked.role, asked.text) == ("user", "weather?")
    assert (called.role, called.text, [call.id for call in called.tool_calls]) == ("assistant", "I look.", ["c1", "c2"])
    assert (answered.role, answered.text, answered.tool_call_id) == ("tool", "rain", "c1")


def test_instructions_come_before_the_earlier_conversation() -> None:
    earlier = [ChatMessage(role="user", content="a"), ChatMessage(role="assistant", content="b")]
    chat = chat_of(parsed(input="c", instructions="i", truncation="auto", reasoning={"effort": "low"}), earlier)
    assert [(message.role, message.text) for message in chat.messages] == [
        ("system", "i"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]
    assert (chat.truncate_prompt_tokens, chat.reasoning_effort, chat.logprobs) == (-1, "low", False)


def test_log_probabilities_are_asked_for_by_inclusion() -> None:
    chat = chat_of(parsed(input="a", include=["message.output_text.logprobs"], top_logprobs=3), [])
    assert (chat.logprobs, chat.top_logprobs) == (True, 3)


def test_an_input_that_says_nothing_is_refused() -> None:
    with pytest.raises(ApiError, match="'input' has no message"):
        chat_of(parsed(input=[]), [])


def test_the_form_of_the_text_is_that_of_a_chats_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"type": "json_schema", "name": "one", "schema": schema, "strict": True}
    chat = chat_of(parsed(input="a", text={"format": asked}), [])
    assert chat.response_format == JsonSchemaFormat(NamedSchema("one", None, schema, True))
    assert (
        chat_of(parsed(input="a", text={"format": {"type": "json_object"}}), []).response_format == JsonObjectFormat()
    )
    assert chat_of(parsed(input="a"), []).response_format == TextFormat()
