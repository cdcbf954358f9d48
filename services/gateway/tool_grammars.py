"""Grammars of answers that have to call tools, or whose calls follow schemas: Lark, as llguidance has it. Pure."""

import json
from collections.abc import Sequence

from livescale.services.gateway.structured_options import schema_text
from livescale.services.gateway.tools import Tool

# Any object: a tool without a schema, or one whose calls need not follow it.
ANY_OBJECT = {"type": "object"}
# Reasoning up to its end, where the prompt, or the answer, has begun it.
_OPENED = r"thoughts[lazy]: /(?s:.*?)<\/think>/"
_NOT_OPENED = r"thoughts[lazy]: /<think>(?s:.*?)<\/think>/"


def arguments_grammar(tool: Tool, reasoning: str = "") -> str:
    """The answer is the arguments of this tool, after its `reasoning`."""
    return _grammar(reasoning, "arguments_0", [_arguments(0, tool, follows=True)])


def calls_grammar(tools: Sequence[Tool], *, several: bool, reasoning: str = "") -> str:
    """The answer is a list of calls of these tools: JSON, each with its name and parameters."""
    more = ' ("," " "? call)*' if several else ""
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, tool in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(tool.function.name)}, "parameters": ')
        rules += [f'call_{index}: {head} arguments_{index} "}}"', _arguments(index, tool, follows=True)]
    return _grammar(reasoning, f'"[" call{more} "]"', rules)


def strict_grammar(tools: Sequence[Tool], *, several: bool, reasoning: str = "") -> str:
    """The answer is free, but the calls in it, written as Hermes does, follow the schemas of tools that are strict."""
    rules = [
        r"before[lazy]: /(?s:.*?)<tool_call>/",
        r"FREE: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/",
        rf'call: "\n"? ({" | ".join(f"call_{index}" for index in range(len(tools)))}) "}}" "\n"? "</tool_call>"',
    ]
    for index, tool in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(tool.function.name)}, "arguments": ')
        rules += [
            f"call_{index}: {head} arguments_{index}",
            _arguments(index, tool, follows=bool(tool.function.strict)),
        ]
    return _grammar(reasoning, f"(before call){'*' if several else '?'} FREE", rules)


def reasoning_rule(*, opened: bool) -> str:
    """The rule of reasoning between `<think>` and `</think>`; the prompt may have opened it."""
    return _OPENED if opened else _NOT_OPENED


def _arguments(index: int, tool: Tool, *, follows: bool) -> str:
    schema = tool.function.parameters if follows else None
    return f"arguments_{index}: %json {schema_text({**ANY_OBJECT, **(schema or {})})}"


def _grammar(reasoning: str, answer: str, rules: Sequence[str]) -> str:
    start = f"start: {answer}"
    if reasoning:
        thoughts = "thoughts BREAK?" if reasoning == _OPENED else "(thoughts BREAK?)?"
        start = f"start: {thoughts} {answer}"
        rules = [reasoning, r"BREAK: /\n{1,2}/", *rules]
    return "\n".join((start, *rules)) + "\n"
