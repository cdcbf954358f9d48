"""What llguidance may use: grammars of clients pass, and what would take minutes ends with an error."""

import json

from llguidance import LLMatcher

from livescale.shared.model.grammar import byte_tokenizer, failure_of, grammar_limits


def matcher(grammar: str) -> LLMatcher:
    return LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=grammar_limits())


def test_any_text_can_be_written_in_the_tokens_of_a_trial() -> None:
    text = "a\0é🙂\n".encode()
    one = matcher(LLMatcher.grammar_from_regex(r"(?s:.*)"))
    assert one.try_consume_tokens(list(text)) == len(text)
    assert not one.is_error()


def test_a_grammar_that_would_take_minutes_is_an_error_that_does_not_show_it() -> None:
    ways = [[{"properties": {f"secret-{part}-{way}": {"type": "string"}}} for way in range(12)] for part in range(12)]
    bomb = json.dumps({"allOf": [{"anyOf": each} for each in ways]})  # 12 to the power of 12 ways to meet it
    one = matcher(LLMatcher.grammar_from_json_schema(bomb))
    if not one.is_error():
        one.compute_bitmask()
    assert one.is_error()
    assert "secret" not in one.get_error()


def test_a_failure_names_the_place_and_does_not_show_the_grammar() -> None:
    unmet = {"type": "integer", "minimum": 5, "maximum": 3}
    schema = {"type": "object", "properties": {"a": unmet}, "required": ["a"]}
    one = matcher(LLMatcher.grammar_from_lark(f'start: call\ncall: "secret" %json {json.dumps(schema)}'))
    assert "secret" in one.get_error()
    failure = failure_of(one)
    assert failure.startswith("at 2(")
    assert failure.endswith("required property 'a' is unsatisfiable")
