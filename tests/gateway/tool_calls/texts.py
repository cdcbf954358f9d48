"""Texts as models write them, by the name of the format, and what they say."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from livescale.services.gateway.tool_calls.formats import CALLS, THINK
from livescale.services.gateway.tool_calls.machine import START, Format, Machine
from livescale.services.gateway.tool_calls.message import Calls, Delta

TYPES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "f": {"a": frozenset({"integer"}), "s": frozenset({"string"}), "o": frozenset({"string", "null"})},
    "get_weather": {"city": frozenset({"string"})},
}
FORMATS: Mapping[str, Format] = {**CALLS, "think": THINK}
BAR, LINE = "\N{FULLWIDTH VERTICAL LINE}", "\u2581"


def deepseek(text: str) -> str:
    """The text with DeepSeek's own signs in its markers."""
    return re.sub(r"<\|(.*?)\|>", lambda found: f"<{BAR}{found[1].replace('_', LINE)}{BAR}>", text)


@dataclass
class Read:
    """What a text says."""

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    reasoning: str = ""


def read(format: Format, pieces: Iterable[str], state: str = START) -> Read:
    """What comes of these pieces of a text."""
    machine = Machine(format, Calls(TYPES, lambda index: f"call_{index}"), state)
    said, names, arguments = Read(), list[str](), list[str]()

    def add(delta: Delta) -> None:
        said.content += delta.content
        said.reasoning += delta.reasoning
        for call in delta.calls:
            if call.id is not None:
                assert (call.index, call.id) == (len(names), f"call_{len(names)}")
                names.append(call.name or "")
                arguments.append("")
            assert call.index == len(names) - 1
            arguments[-1] += call.arguments

    for piece in pieces:
        delta = Delta()
        machine.feed(piece, delta)
        add(delta)
    delta = Delta()
    machine.flush(delta)
    add(delta)
    said.calls = list(zip(names, arguments, strict=True))
    return said


def cut(text: str, places: Sequence[int]) -> list[str]:
    """The text, cut at these places."""
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


F1 = ("f", '{"a": 1}')
G = ("g", "{}")
TEXTS: list[tuple[str, str, Read]] = [
    # hermes
    ("hermes", 'Yes.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', Read("Yes.", [F1])),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "id": 5, "name": "f"}</tool_call>\n<tool_call>{"name": "g"}</tool_call>\n',
        Read("", [F1, G]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "a}\\"</tool_call>"}}</tool_call>',
        Read("", [("f", '{"s": "a}\\"</tool_call>"}')]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', Read("", [F1])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', Read("", [("f", '{"a": 1')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": </tool_call>', Read("", [("f", '{"a": ')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>.', Read(".", [("f", "{}")])),
    ("hermes", 'a <tool_call>{"a": 1}</tool_call>', Read('a <tool_call>{"a": 1}</tool_call>')),
    ("hermes", "<tool_call>[1]", Read("<tool_call>[1]")),
    ("hermes", "a <tool_ca b \n", Read("a <tool_ca b \n")),
    ("hermes", "<tool_call>", Read("<tool_call>")),
    # llama3_json
    (
        "llama3_json",
        ' {"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}',
        Read("", [F1, ("f", "{}")]),
    ),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', Read("", [F1])),
    ("llama3_json", '{"name": "other", "parameters": {}}', Read('{"name": "other", "parameters": {}}')),
    ("llama3_json", '{"answer": 5}', Read('{"answer": 5}')),
    ("llama3_json", 'So: {"name": "f"}', Read('So: {"name": "f"}')),
    # mistral
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        Read("", [F1, G]),
    ),
    ("mistral", 'Yes[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', Read("Yes", [F1, G])),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', Read("", [F1])),
    ("mistral", '[TOOL_CALLS][{"a": 1}]', Read('[TOOL_CALLS][{"a": 1}]')),
    ("mistral", "[TOOL_CALLS]f, and so on", Read("[TOOL_CALLS]f, and so on")),
    # qwen3_coder
    (
        "qwen3_coder",
        'Yes\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\na <b>\n"c"\n\n</parameter>\n'
        "</function>\n</tool_call>",
        Read("Yes", [("f", '{"a":1,"s":"a <b>\\n\\"c\\"\\n"}')]),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=f></function></tool_call>\n<function=f><parameter=o>null</parameter></function>",
        Read("", [("f", "{}"), ("f", '{"o":null}')]),
    ),
    (
        "qwen3_coder",
        "<function=f><parameter=a>one</parameter><parameter=new>2</parameter>",
        Read("", [("f", '{"a":"one","new":"2"')]),
    ),
    ("qwen3_coder", "<function=f><parameter=a>1</parameter>So", Read("So", [("f", '{"a":1}')])),
    ("qwen3_coder", "<tool_call>\nf(1)", Read("<tool_call>\nf(1)")),
    # pythonic
    (
        "pythonic",
        "[f(a=1, s='x)]\"'), get_weather(city=[None, {'b': True}])]",
        Read("", [("f", '{"a": 1, "s": "x)]\\""}'), ("get_weather", '{"city": [null, {"b": true}]}')]),
    ),
    ("pythonic", "<|python_start|>[f()]<|python_end|>", Read("", [("f", "{}")])),
    ("pythonic", "[f(a=1)] is it", Read(" is it", [F1])),
    ("pythonic", "[1, 2]", Read("[1, 2]")),
    ("pythonic", "[f(1)]", Read("[f(1)]")),
    ("pythonic", "[f(a=g())]", Read("[f(a=g())]")),
    ("pythonic", "[f(a=1", Read("[f(a=1")),
    ("pythonic", "See [f(a=1)]", Read("See [f(a=1)]")),
    # deepseek
    (
        "deepseek",
        deepseek(
            'Yes<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{"a": 1}\n```<|tool_call_end|>\n'
            "<|tool_call_begin|>function<|tool_sep|>g\n```json\n{}\n```<|tool_call_end|><|tool_calls_end|>"
        ),
        Read("Yes", [F1, G]),
    ),
    (
        "deepseek",
        deepseek(
            '<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{"a": 1}<|tool_call_end|>'
            "<|tool_call_begin|>g<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|>"
        ),
        Read("", [F1, G]),
    ),
    ("deepseek", deepseek("<|tool_calls_begin|> none"), Read(deepseek("<|tool_calls_begin|> none"))),
    # harmony
    ("harmony", "<|channel|>final<|message|>Yes.", Read("Yes.")),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|>',
        Read("", [F1], "Hm <b>."),
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>"
        '{"a": 1}',
        Read("Wait.", [F1]),
    ),
    ("harmony", "<|channel|>anal", Read()),
    ("harmony", "Just text", Read("Just text")),
    # think
    ("think", "<think>\nHm </th\n</think>\n\nYes.", Read("\n\nYes.", [], "\nHm </th\n")),
    ("think", "\n<think>Hm", Read("", [], "Hm")),
    ("think", "It says <think>x</think>", Read("It says <think>x</think>")),
]
