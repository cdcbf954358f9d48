from typing import Any

import pytest

from livescale.services.gateway.bodies import ChatMessage, ChatRequest
from livescale.services.gateway.chat_template import ChatTemplate
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.reading import reading_of
from livescale.services.gateway.tool_calls.formats import HARMONY, HERMES, MISTRAL, THINK
from livescale.services.gateway.tools import FunctionDefinition, Tool
from livescale.shared.messages.parameters import ModelSpec

QWEN = ChatTemplate("<tool_call> </think>", {}, lambda: 0.0)
F = Tool(function=FunctionDefinition(name="f"))


def chat(**more: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[ChatMessage(role="user", content="a")], **more)


def spec(**more: Any) -> ModelSpec:
    return ModelSpec(name="m", path="m", **more)


@pytest.mark.parametrize(
    ("body", "said", "formats"),
    [
        (chat(), {}, (THINK,)),
        (chat(tools=[F]), {}, (THINK, HERMES)),
        (chat(tools=[F], tool_choice="none"), {}, (THINK,)),
        (chat(tools=[F]), {"reasoning_parser": "none"}, (HERMES,)),
        (chat(tools=[F]), {"tool_call_parser": "mistral", "reasoning_parser": "none"}, (MISTRAL,)),
        (chat(), {"reasoning_parser": "harmony"}, (HARMONY,)),
        (chat(tools=[F]), {"tool_call_parser": "harmony"}, (HARMONY,)),
    ],
)
def test_formats_are_those_of_the_template_unless_the_operator_says_others(
    body: ChatRequest, said: dict[str, Any], formats: object
) -> None:
    reading = reading_of(body, spec(**said), QWEN, "a")
    assert reading is not None
    assert reading.formats == formats


def test_a_plain_answer_is_not_read() -> None:
    assert reading_of(chat(), spec(), None, "a") is None
    assert reading_of(chat(), spec(reasoning_parser="none"), QWEN, "a") is None


@pytest.mark.parametrize(
    ("body", "said", "param"),
    [
        (chat(tools=[F]), {"tool_call_parser": "none"}, "tools"),
        (chat(tools=[F], tool_choice="required"), {}, "tool_choice"),
        (chat(tools=[Tool(function=FunctionDefinition(name="f", strict=True))]), {}, "tools[0].function.strict"),
    ],
)
def test_what_cannot_be_kept_is_refused(body: ChatRequest, said: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        reading_of(body, spec(**said), QWEN, "a")
    assert (refused.value.status, refused.value.detail.param) == (400, param)


def test_a_prompt_may_open_the_reasoning() -> None:
    reading = reading_of(chat(), spec(), QWEN, "a")
    assert reading is not None
    assert reading.after("user: a\nassistant: <think>\n").opened
    assert not reading.after("user: what is <think>?\nassistant: ").opened
    assert not reading.after("<think>\n\n</think>\n\n").opened
