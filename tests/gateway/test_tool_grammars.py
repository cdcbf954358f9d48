import pytest
from llguidance import LLMatcher

from livescale.services.gateway.grammar_process import Trial, translate
from livescale.services.gateway.tool_grammars import (
    arguments_grammar,
    calls_grammar,
    reasoning_rule,
    strict_grammar,
)
from livescale.services.gateway.tools import FunctionDefinition, Tool
from livescale.shared.model.grammar import byte_tokenizer, grammar_limits

CITY = {"city": {"$ref": "#/$defs/city"}}
SCHEMA = {
    "properties": CITY,
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Bonn"]}},
}
WEATHER = Tool(function=FunctionDefinition(name="weather", parameters=SCHEMA, strict=True))
CLOCK = Tool(function=FunctionDefinition(name="clock"))
TOOLS = (WEATHER, CLOCK)
BONN = '{"city": "Bonn"}'
OPENED, NOT_OPENED = reasoning_rule(opened=True), reasoning_rule(opened=False)


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def listed(*calls: tuple[str, str]) -> str:
    told = (f'{{"name": "{name}", "parameters": {given}}}' for name, given in calls)
    return f"[{', '.join(told)}]"


def accepts(grammar: str, text: str) -> bool:
    """Whether the text is a whole answer by this grammar."""
    matcher = LLMatcher(byte_tokenizer(), translate(Trial("grammar", grammar)), log_level=0, limits=grammar_limits())
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (arguments_grammar(WEATHER), [BONN], ['{"city": "Oslo"}', "{}", "Hm"]),
        (arguments_grammar(CLOCK), ["{}", '{"a": [1]}'], ["[]"]),
        (arguments_grammar(WEATHER, OPENED), [f"Hm </think>\n\n{BONN}"], [BONN]),
        (arguments_grammar(WEATHER, NOT_OPENED), [f"<think>Hm </think>{BONN}", BONN], [f"Hm </think>{BONN}"]),
        (
            calls_grammar(TOOLS, several=True),
            [listed(("weather", BONN), ("clock", "{}")), listed(("clock", "{}"))],
            ["[]", listed(("other", "{}")), listed(("weather", "{}"))],
        ),
        (calls_grammar(TOOLS, several=False), [listed(("clock", "{}"))], [listed(("clock", "{}"), ("clock", "{}"))]),
        (
            strict_grammar(TOOLS, several=True, reasoning=NOT_OPENED),
            ["Hi <b>", f"<think>a</think>\n\nSo:\n{hermes('weather', BONN)}\n{hermes('clock', '{}')}"],
            [hermes("weather", "{}"), "<tool_call>x", hermes("other", "{}")],
        ),
        (
            strict_grammar(TOOLS, several=False),
            [hermes("weather", BONN), hermes("clock", '{"a": 1}')],
            [hermes("clock", "{}") * 2],
        ),
    ],
)
def test_a_grammar_accepts_the_calls_that_it_is_for(grammar: str, right: list[str], wrong: list[str]) -> None:
    assert all(accepts(grammar, text) for text in right)
    assert not any(accepts(grammar, text) for text in wrong)
