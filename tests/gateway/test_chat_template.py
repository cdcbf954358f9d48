"""Prompts of conversations are those of transformers, on the same checkpoint."""

import json

import pytest
import transformers

from livescale.services.gateway.chat_template import ChatTemplate, RenderingWay, TemplateRefusal
from livescale.services.gateway.checkpoint_reading import load_checkpoint_text
from livescale.services.gateway.conversation import CalledFunction, ChatMessage, TextPart, ToolCall
from livescale.shared.messages.parameters import Family
from tests.checkpoints import FAMILIES, tiny_checkpoint

CHAT = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content=[TextPart("text", "語 one"), TextPart("text", "two 🙂")]),
    ChatMessage(role="assistant", content="yes"),
    ChatMessage(role="user", content="<b>more</b>"),
]
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "語 one\ntwo 🙂"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "<b>more</b>"},
]


def noon() -> float:
    return 1_700_000_000.0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompt_and_tokens_are_those_of_transformers(family: Family, add_generation_prompt: bool) -> None:
    text = load_checkpoint_text(tiny_checkpoint(family), noon)
    reference = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint(family))
    assert text.template is not None
    prompt = text.template.render(CHAT, RenderingWay(add_generation_prompt))
    assert prompt == reference.apply_chat_template(PLAIN, add_generation_prompt=add_generation_prompt, tokenize=False)
    assert text.encode(prompt, add_special_tokens=False) == reference(prompt, add_special_tokens=False)["input_ids"]
    assert text.encode("abc 語", add_special_tokens=True) == reference("abc 語")["input_ids"]


def test_templates_have_what_transformers_gives_them() -> None:
    source = (
        "{{ bos_token }}{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% generation %}{{ message | tojson }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    rendered = ChatTemplate(source, {"bos_token": "<s>"}, noon).render(CHAT)
    assert rendered.startswith('<s>{"role": "system", "content": "Be brief."}{"role": "user", "content": "語 one')
    assert rendered.endswith("}2023")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].missing.more }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        ChatTemplate(source, {}, noon).render(CHAT)


def test_a_broken_template_is_the_checkpoints_fault() -> None:
    with pytest.raises(TemplateRefusal, match="template cannot be compiled"):
        ChatTemplate("{% for %}", {}, noon)


TALK = [
    ChatMessage(role="user", content="weather?"),
    ChatMessage(
        role="assistant",
        reasoning="hm",
        tool_calls=[ToolCall(CalledFunction("look", '{"at": "語"}'), id="1"), ToolCall(CalledFunction("wait", {}))],
    ),
    ChatMessage(role="tool", content="rain", tool_call_id="1", type="text"),
]


def test_calls_of_tools_are_told_as_transformers_templates_expect_them() -> None:
    rendered = json.loads(ChatTemplate("{{ messages | tojson }}", {}, noon).render(TALK))
    assert rendered[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "語"}}},
            {"id": None, "type": "function", "function": {"name": "wait", "arguments": {}}},
        ],
    }
    assert rendered[2] == {"role": "tool", "content": "rain", "tool_call_id": "1"}


@pytest.mark.parametrize("arguments", ["{", "[]", "1"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    call = ChatMessage(role="assistant", tool_calls=[ToolCall(CalledFunction("look", arguments))])
    with pytest.raises(TemplateRefusal, match=r"the arguments of look are not (JSON: Expecting|a JSON object)"):
        ChatTemplate("", {}, noon).render([call])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("last", ["The answer is", " spaced  "])
def test_a_message_is_continued_as_by_transformers(family: Family, last: str) -> None:
    text = load_checkpoint_text(tiny_checkpoint(family), noon)
    reference = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint(family))
    assert text.template is not None
    prompt = text.template.render([*CHAT, ChatMessage(role="assistant", content=last)], RenderingWay(False, True))
    plain = [*PLAIN, {"role": "assistant", "content": last}]
    assert prompt == reference.apply_chat_template(plain, continue_final_message=True, tokenize=False)


def test_what_is_not_in_the_prompt_cannot_be_continued() -> None:
    with pytest.raises(TemplateRefusal, match="cannot be continued"):
        ChatTemplate("nothing", {}, noon).render(CHAT, RenderingWay(False, True))


def test_variables_reach_the_template_and_are_nothing_where_they_are_not_given() -> None:
    template = ChatTemplate("{{ thinking }}|{{ documents }}|{{ bos_token }}", {"bos_token": "<s>"}, noon)
    assert template.render(CHAT) == "|None|<s>"
    assert template.render(CHAT, RenderingWay(variables={"thinking": False, "documents": []})) == "False|[]|<s>"
