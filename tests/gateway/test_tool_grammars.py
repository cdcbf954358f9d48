from collections.abc import Mapping

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from livescale.services.gateway.constraints import schema_text
from livescale.services.gateway.grammar_process import Trial, translate
from livescale.services.gateway.tool_grammars import MARKERS, ToolGrammars
from livescale.services.gateway.tools import FunctionDefinition, Tool
from livescale.shared.model.grammar import byte_tokenizer, grammar_limits
from tests.checkpoints import tiny_checkpoint

CITY = {"city": {"$ref": "#/$defs/city"}}
CLOSED = {"required": ["city"], "additionalProperties": False}
SCHEMA = {"properties": CITY, **CLOSED, "$defs": {"city": {"enum": ["Bonn"]}}}
WEATHER = Tool(function=FunctionDefinition(name="weather", parameters=SCHEMA, strict=True))
CLOCK = Tool(function=FunctionDefinition(name="clock"))
TOOLS = (WEATHER, CLOCK)
BONN = '{"city": "Bonn"}'


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def listed(*calls: tuple[str, str]) -> str:
    told = (f'{{"name": "{name}", "parameters": {given}}}' for name, given in calls)
    return f"[{', '.join(told)}]"


def accepts(vocabulary: LLTokenizer, grammar: str, tokens: list[int]) -> bool:
    """Whether the tokens are a whole answer by this grammar."""
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=grammar_limits())
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.fixture(scope="module")
def with_markers() -> Tokenizer:
    """A tokenizer that has the markers as tokens, as that of Qwen3."""
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint("qwen2") / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in MARKERS])
    return tokenizer


def grammar_of(form: str, grammars: ToolGrammars) -> str:
    match form:
        case "calls":
            return grammars.of_calls()
        case "strict":
            return grammars.of_strict_calls()
        case "formed":
            return grammars.of_calls_or(schema_text({"type": "integer"}))
        case name:
            return grammars.of_arguments(name)


@pytest.mark.parametrize(
    ("form", "said", "right", "wrong"),
    [
        ("weather", {}, [BONN], ['{"city": "Oslo"}', "{}", "Hm"]),
        (
            "formed",
            {},
            ["17", hermes("weather", BONN), f"{hermes('clock', '{}')}\n{hermes('weather', BONN)}"],
            ["seven", "", hermes("weather", "{}"), f"17{hermes('weather', BONN)}"],
        ),
        ("formed", {"thoughts": "possible"}, ["<think>Hm.</think>\n\n17", "17"], ["<think>Hm."]),
        ("formed", {"several": False}, [hermes("clock", "{}")], [hermes("clock", "{}") * 2]),
        ("clock", {}, ["{}", '{"a": [1]}'], ["[]"]),
        ("weather", {"thoughts": "opened"}, [f"Hm </think>\n\n{BONN}"], [BONN]),
        (
            "weather",
            {"thoughts": "possible"},
            [f"<think>Hm </think>{BONN}", BONN],
            [f"Hm </think>{BONN}", f"<think>{BONN}"],
        ),
        (
            "calls",
            {},
            [listed(("weather", BONN), ("clock", "{}")), listed(("clock", "{}"))],
            ["[]", listed(("other", "{}")), listed(("weather", "{}"))],
        ),
        ("calls", {"several": False}, [listed(("clock", "{}"))], [listed(("clock", "{}"), ("clock", "{}"))]),
        (
            "strict",
            {"thoughts": "possible"},
            [
                "Hi <b>",
                f"<think>a</think>\n\nSo:\n{hermes('weather', BONN)}\n{hermes('clock', '{}')}",
                "<think>a</think>b",
            ],
            [hermes("weather", "{}"), "<tool_call>x", hermes("other", "{}")],
        ),
        (
            "strict",
            {"several": False},
            [hermes("weather", BONN), hermes("clock", '{"a": 1}')],
            [hermes("clock", "{}") * 2],
        ),
    ],
)
def test_a_grammar_accepts_the_calls_that_it_is_for(
    form: str, said: Mapping[str, object], right: list[str], wrong: list[str], with_markers: Tokenizer
) -> None:
    plain = translate(Trial("grammar", grammar_of(form, ToolGrammars(TOOLS, **said))))  # type: ignore[arg-type]
    ids = {marker: with_markers.token_to_id(marker) for marker in MARKERS}
    marked = grammar_of(form, ToolGrammars(TOOLS, **said, tokens=ids))  # type: ignore[arg-type]
    vocabulary, letters = LLTokenizer(with_markers.to_str()), byte_tokenizer()
    for texts, is_right in ((right, True), (wrong, False)):
        for text in texts:
            assert accepts(letters, plain, list(text.encode())) is is_right, text
            tokens = with_markers.encode(text, add_special_tokens=False).ids
            assert accepts(vocabulary, marked, tokens) is is_right, text
