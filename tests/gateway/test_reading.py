"""What becomes of a chat's answers: by which formats they are read, and what clients are told of their tokens."""

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.chat_template import ChatTemplate
from livescale.services.gateway.checkpoint_text import CheckpointText, GenerationDefaults
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.options import JsonSchemaFormat, NamedSchema
from livescale.services.gateway.reading import reading_of
from livescale.services.gateway.tool_calls.formats import ARGUMENTS, CALL_LIST, HARMONY, HERMES, MISTRAL, THINK
from livescale.services.gateway.tools import FunctionDefinition, FunctionName, NamedTool, Tool
from livescale.shared.messages.model_spec import ModelSpec

QWEN = ChatTemplate("<tool_call> </think>", {}, lambda: 0.0)
PROMPT = "user: a\nassistant: "
F = Tool(function=FunctionDefinition(name="f"))


def chat(**more: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[ChatMessage(role="user", content="a")], **more)


def text(template: ChatTemplate | None = QWEN, special: str = "<|im_end|>") -> CheckpointText:
    tokenizer = Tokenizer(BPE())
    tokenizer.add_special_tokens([special])
    return CheckpointText(tokenizer, template, (2,), 50, GenerationDefaults())


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
    reading = reading_of(body, spec(**said), text(), "a", PROMPT)
    assert reading is not None
    assert reading.formats == formats


def test_a_plain_answer_is_not_read() -> None:
    assert reading_of(chat(), spec(), text(None), "a", PROMPT) is None
    assert reading_of(chat(), spec(reasoning_parser="none"), text(), "a", PROMPT) is None


S = Tool(function=FunctionDefinition(name="f", strict=True))
NAMED = NamedTool(function=FunctionName("f"))


@pytest.mark.parametrize(
    ("body", "said", "param"),
    [
        (chat(tools=[F]), {"tool_call_parser": "none"}, "tools"),
        (chat(tools=[F, S]), {"tool_call_parser": "mistral"}, "tools[1].function.strict"),
        (chat(tools=[F], tool_choice="required", guided_regex="a"), {}, "tool_choice"),
        (chat(tools=[F], tool_choice=NAMED, ignore_eos=True), {}, "ignore_eos"),
        (chat(tools=[S], min_tokens=5), {}, "min_tokens"),
    ],
)
def test_what_cannot_be_kept_is_refused(body: ChatRequest, said: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        reading_of(body, spec(**said), text(), "a", PROMPT)
    assert (refused.value.status, refused.value.detail.param) == (400, param)


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("user: a\nassistant: <think>\n", True),
        ("user: what is <think>?\nassistant: ", False),
        ("<think>\n\n</think>\n\n", False),
    ],
)
def test_a_prompt_may_open_the_reasoning(prompt: str, opened: bool) -> None:
    reading = reading_of(chat(), spec(), text(), "a", prompt)
    assert reading is not None
    assert reading.opened is opened


def test_an_answer_that_has_to_call_is_held_to_a_form() -> None:
    for choice, format, called in (("required", CALL_LIST, "tool_calls"), (NAMED, ARGUMENTS, "stop")):
        reading = reading_of(chat(tools=[F], tool_choice=choice), spec(), text(), "a", PROMPT)
        assert reading is not None
        assert reading.constraint is not None
        assert (reading.formats, reading.telling.called) == ((THINK, format), called)
        assert "</think>" in reading.grammar.replace("\\", "")


def test_markers_that_are_tokens_go_by_their_ids() -> None:
    special = text(special="</think>")
    reading = reading_of(chat(tools=[F], tool_choice="required"), spec(), special, "a", PROMPT)
    assert reading is not None
    assert reading.constraint is not None
    id = special.tokenizer.token_to_id("</think>")
    assert [f"<[{id}]>" in one for one in (reading.grammar, reading.constraint.source)] == [True, False]


def test_an_answer_of_a_form_is_not_read() -> None:
    assert reading_of(chat(guided_regex="a"), spec(), text(), "a", "assistant: <think>") is None


def test_an_answer_of_a_form_may_be_calls_where_these_can_be_told_apart() -> None:
    form = JsonSchemaFormat(NamedSchema("a", schema={"type": "integer"}))
    reading = reading_of(chat(tools=[F], response_format=form), spec(), text(), "a", PROMPT)
    assert reading is not None
    assert reading.constraint is not None
    assert reading.constraint.param == "response_format"
    assert "form: %json" in reading.grammar
    with pytest.raises(ApiError) as refused:
        reading_of(chat(tools=[F], guided_regex="a"), spec(), text(), "a", PROMPT)
    assert refused.value.detail.param == "guided_regex"


def test_calls_of_strict_tools_are_held_to_their_schemas() -> None:
    free = reading_of(chat(tools=[F]), spec(), text(), "a", PROMPT)
    strict = reading_of(chat(tools=[F, S]), spec(), text(), "a", PROMPT)
    assert free is not None
    assert strict is not None
    assert [one.constraint is None for one in (free, strict)] == [True, False]
