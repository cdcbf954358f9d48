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
from livescale.services.gateway.output import TextOutput, TextPiece, WholeChoice
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.reading import ParsedOutput, Telling, call_ids, reading_of
from livescale.services.gateway.structured_options import JsonSchemaFormat, NamedSchema
from livescale.services.gateway.tool_calls.formats import ARGUMENTS, CALL_LIST, HARMONY, HERMES, MISTRAL, THINK
from livescale.services.gateway.tool_calls.machine import Machine
from livescale.services.gateway.tool_calls.message import Calls
from livescale.services.gateway.tools import FunctionDefinition, FunctionName, NamedTool, Tool
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.requests import TokenLogprobs

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


ANSWER = '<think>Hm</think>\n\nOk.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def decode(token_ids: object) -> str:
    return "".join(map(chr, token_ids))  # type: ignore[call-overload]


def output(telling: Telling | None = None) -> ParsedOutput:
    machines = [Machine(format, Calls({}, str)) for format in (THINK, HERMES)]
    return ParsedOutput(TextOutput(decode, []), machines, telling or Telling())


def fresh(text: str, *, last: bool) -> Fresh:
    logprobs = tuple(TokenLogprobs(-ord(letter) / 100, []) for letter in text)
    return Fresh(tuple(map(ord, text)), "stop" if last else None, logprobs=logprobs)


def whole(reader: ParsedOutput, size: int) -> WholeChoice:
    choice = WholeChoice([])
    for start in range(0, len(ANSWER), size):
        choice.add(reader.feed(fresh(ANSWER[start : start + size], last=start + size >= len(ANSWER))))
    return choice


def test_an_answer_is_the_same_however_many_tokens_come_at_once() -> None:
    for size in (1, 2, 7, len(ANSWER)):
        reader = output()
        choice = whole(reader, size)
        assert (choice.text, choice.reasoning, choice.finish_reason) == ("\n\nOk.", "Hm", "tool_calls")
        assert ["".join(piece.arguments for piece in call) for call in choice.calls] == ['{"a": 1}']
        assert reader.reasoning_tokens == len("Hm</think>")
        assert (decode(choice.token_ids), len(choice.logprobs)) == (ANSWER, len(ANSWER))


def test_a_client_is_told_what_it_wants() -> None:
    choice = whole(output(Telling(shown=False, called="stop")), 5)
    assert (choice.reasoning, choice.finish_reason) == ("", "stop")


def test_an_answer_that_is_cut_off_ends_for_that_reason() -> None:
    piece = output().feed(Fresh(tuple(map(ord, ANSWER)), "length"))
    assert piece.finish_reason == "length"
    assert [call.name for call in piece.calls] == ["f"]


def test_an_end_without_a_token_brings_what_was_held_back() -> None:
    reader = output()
    assert reader.feed(Fresh((ord("<"),))) == TextPiece("", (ord("<"),))
    assert reader.feed(Fresh((), "stop")) == TextPiece("<", (), "stop")


def test_ids_of_calls_are_always_the_same_and_all_different() -> None:
    ids = {
        call_ids(*key, short=False)(index)
        for key in (("a", [1], 0), ("b", [1], 0), ("a", [2], 0), ("a", [1], 1))
        for index in (0, 1)
    }
    assert len(ids) == 8
    assert call_ids("a", [1], 0, short=False)(0) in ids
    short = call_ids("a", [1], 0, short=True)(0)
    assert len(short) == 9
    assert short.isalnum()
