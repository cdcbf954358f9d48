"""Grammars of answers that have to call tools, or whose calls follow schemas: Lark, as llguidance has it. Pure.

Markers that are tokens of their own go by their ids in `tokens`, as no text matches such a token. A grammar without
`tokens` can be tried with any vocabulary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from livescale.services.gateway.constraints import schema_text
from livescale.services.gateway.tools import Tool

# What comes before the answer: nothing, reasoning, or the end of reasoning that the prompt has begun.
Thoughts = Literal["none", "possible", "opened"]
THINK, END_THINK, CALL, END_CALL = MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class ToolGrammars:
    """The grammars for one request's tools. Without `several` an answer has one call at most."""

    tools: Sequence[Tool]
    thoughts: Thoughts = "none"
    several: bool = True
    tokens: Mapping[str, int] = field(default_factory=dict)

    def of_arguments(self, name: str) -> str:
        """The answer is the arguments of this tool."""
        [tool] = [tool for tool in self.tools if tool.function.name == name]
        return self._grammar("arguments_0", [_arguments(0, tool, follows=True)])

    def of_calls(self) -> str:
        """The answer is a list of calls: JSON, each with its name and parameters."""
        more = ' ("," " "? call)*' if self.several else ""
        rules = [f"call: {self._any_call()}"]
        for index, tool in enumerate(self.tools):
            head = json.dumps(f'{{"name": {json.dumps(tool.function.name)}, "parameters": ')
            rules += [f'call_{index}: {head} arguments_{index} "}}"', _arguments(index, tool, follows=True)]
        return self._grammar(f'"[" call{more} "]"', rules)

    def of_strict_calls(self) -> str:
        """The answer is free, but calls in it, written as Hermes does, follow the schemas of tools that are strict."""
        if CALL in self.tokens:
            rules = [f"before: ANY {self._mark(CALL)}", "free: ANY"]
        else:
            rules = [r"before[lazy]: /(?s:.*?)<tool_call>/", "free: FREE"]
            rules.append(r"FREE: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/")
        rules.append(rf'call: "\n"? ({self._any_call()}) "}}" "\n"? {self._mark(END_CALL)}')
        rules += self._strict_rules()
        return self._grammar(f"(before call){'*' if self.several else '?'} free", rules)

    def of_calls_or(self, schema: str) -> str:
        """The answer is JSON by this schema, or calls as Hermes writes them."""
        rules = [
            rf'call: "\n"? {self._mark(CALL)} "\n"? ({self._any_call()}) "}}" "\n"? {self._mark(END_CALL)}',
            f"form: %json {schema}",
            *self._strict_rules(),
        ]
        return self._grammar(f"(call{'+' if self.several else ''} | form)", rules)

    def _strict_rules(self) -> list[str]:
        """Each call with its arguments, which follow the schemas of tools that are strict."""
        rules = []
        for index, tool in enumerate(self.tools):
            head = json.dumps(f'{{"name": {json.dumps(tool.function.name)}, "arguments": ')
            arguments = _arguments(index, tool, follows=bool(tool.function.strict))
            rules += [f"call_{index}: {head} arguments_{index}", arguments]
        return rules

    def _any_call(self) -> str:
        return " | ".join(f"call_{index}" for index in range(len(self.tools)))

    def _mark(self, marker: str) -> str:
        return f"<[{self.tokens[marker]}]>" if marker in self.tokens else json.dumps(marker)

    def _grammar(self, answer: str, rules: Sequence[str]) -> str:
        before = {"none": "", "possible": "(thoughts BREAK?)? ", "opened": "thoughts BREAK? "}[self.thoughts]
        begin = "" if self.thoughts == "opened" else f"{self._mark(THINK)} "
        if END_THINK in self.tokens:
            thoughts = f"thoughts: {begin}ANY {self._mark(END_THINK)}"
        else:
            thoughts = f"thoughts: {begin}rest\nrest[lazy]: /(?s:.*?)<\\/think>/"
        found = [f"start: {before}{answer}", *rules]
        if before:
            found += [thoughts, r"BREAK: /\n{1,2}/"]
        if any("ANY" in rule.split() for rule in found):
            found.append("ANY: /(?s:.*)/")
        return "\n".join(found) + "\n"


def _arguments(index: int, tool: Tool, *, follows: bool) -> str:
    """The rule of a tool's arguments: any object where they need not follow a schema, or there is none."""
    schema = tool.function.parameters if follows else None
    return f"arguments_{index}: %json {schema_text({'type': 'object', **(schema or {})})}"
