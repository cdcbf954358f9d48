import pytest

from livescale.services.gateway.tool_calls.formats import (
    CALLS,
    OPENED,
    REASONING,
    THINK,
    calls_of_template,
    reasoning_of_template,
)
from livescale.services.gateway.tool_calls.machine import START, TEXT
from tests.gateway.tool_calls.texts import BAR, FORMATS, LINE, TEXTS, Read, read


@pytest.mark.parametrize(("name", "text", "said"), TEXTS)
def test_a_text_says_what_its_format_means(name: str, text: str, said: Read) -> None:
    assert read(FORMATS[name], [text]) == said


def test_every_format_is_tried() -> None:
    assert {name for name, _, _ in TEXTS} == set(FORMATS)


def test_all_states_that_a_format_names_are_there() -> None:
    for format in (*CALLS.values(), *REASONING.values()):
        named = {START, TEXT}
        for state in format.values():
            named |= {mark.to for mark in getattr(state, "marks", ()) if isinstance(mark.to, str)}
            named |= {name for name in (getattr(state, "then", None), getattr(state, "otherwise", None)) if name}
        assert named <= set(format)


def test_reasoning_that_the_prompt_has_opened_goes_on() -> None:
    assert read(THINK, ["Hm</think>Yes"], OPENED) == Read("Yes", [], "Hm")
    assert read(THINK, ["<think>Hm</think>Yes"], OPENED) == Read("Yes", [], "Hm")


@pytest.mark.parametrize(
    ("source", "calls", "reasoning"),
    [
        ("{{ messages }}", None, None),
        ("<tool_call>{{ call }}</tool_call> </think>", "hermes", "think"),
        ("<tool_call><function=a><parameter=b>", "qwen3_coder", None),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        (
            'Respond with {"name": function name, "parameters": dictionary of argument name and its value}',
            "llama3_json",
            None,
        ),
        ("[func_name1(params_name1=params_value1)]", "pythonic", None),
        (f"<{BAR}tool{LINE}calls{LINE}begin{BAR}> </think>", "deepseek", "think"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony", "harmony"),
    ],
)
def test_a_chat_template_tells_the_formats(source: str, calls: str | None, reasoning: str | None) -> None:
    assert (calls_of_template(source), reasoning_of_template(source)) == (calls, reasoning)
