"""What the process of grammars makes of one: the grammar as workers apply it, or a short reason."""

import json

import msgspec
import pytest
from llguidance import LLMatcher

from livescale.services.gateway.grammar_process import LONGEST_REASON, Trial, Trials, Tried
from livescale.shared.model.grammar import GrammarKind, byte_tokenizer, grammar_limits

TRIALS = Trials()


def tried(kind: GrammarKind, source: str) -> Tried:
    return msgspec.msgpack.decode(TRIALS.answer(msgspec.msgpack.encode(Trial(kind, source))), type=Tried)


def accepts(grammar: str, text: str) -> bool:
    """Whether a worker that applies the grammar lets a model write all of this text, and end there."""
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=grammar_limits())
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("json", json.dumps({"type": "integer"}), "-12", '"12"'),
        ("regex", "a+b", "aab", "ab0"),
        ("choice", json.dumps(["yes", 'say "no"']), 'say "no"', "maybe"),
        ("grammar", 'start: "a" | "b" start', "bba", "bb"),
        ("grammar", 'root ::= "a" | "b" root', "bba", "bb"),
    ],
)
def test_every_kind_becomes_a_grammar_that_workers_apply(kind: GrammarKind, source: str, good: str, bad: str) -> None:
    made = tried(kind, source)
    assert made.refusal == ""
    assert accepts(made.grammar, good)
    assert not accepts(made.grammar, bad)


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("grammar", 'start: start "a"', "no answer can meet it"),
        ("json", json.dumps({"$ref": "#"}), "no answer can meet it"),
        ("json", json.dumps({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "use anyOf"),
        ("regex", "(a", "unclosed group"),
    ],
)
def test_a_reason_speaks_of_the_grammar_and_not_of_its_library(kind: GrammarKind, source: str, reason: str) -> None:
    made = tried(kind, source)
    assert reason in made.refusal
    assert "non-verbose" not in made.refusal


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json", "{"),
        ("json", json.dumps({"type": "integer", "minimum": 5, "maximum": 3})),
        ("json", json.dumps({"$ref": "#/" + "x" * 1_000})),
        ("regex", "(a"),
        ("grammar", "start: other"),
    ],
)
def test_what_cannot_be_met_has_a_short_reason_on_one_line(kind: GrammarKind, source: str) -> None:
    made = tried(kind, source)
    assert made.grammar == ""
    assert 0 < len(made.refusal) <= LONGEST_REASON
    assert "\n" not in made.refusal
