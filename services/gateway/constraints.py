"""The form that an answer is held to, whichever parameter of its body says so."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.options import (
    AnswerOptions,
    JsonObjectFormat,
    JsonSchemaFormat,
    Schema,
    StructuredOutputs,
)
from livescale.shared.model.grammar import MOST_GRAMMAR_BYTES, GrammarKind

# Space between parts of JSON: none, a blank, or a new line with its indent. It ends, so that an answer does.
WHITESPACE = r"( |\n {0,32})?"
# Keywords of a schema whose value is a value, and those that have schemas by name.
VALUES = frozenset(("const", "enum", "default", "examples"))
BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


@dataclass(frozen=True)
class Constraint:
    """What form an answer has, and the parameter that says so. `source` is a JSON schema, a regular expression,
    alternatives as JSON, or a grammar."""

    param: str
    kind: GrammarKind
    source: str


def constraint_of(body: AnswerOptions) -> Constraint | None:
    """What form the body asks for; None for free text. Raises ApiError 400 where it asks for two, or for something that
    does not go with one."""
    found = list(_constraints(body))
    if not found:
        if body.structured_outputs is not None:
            raise bad_request(
                "'structured_outputs' says nothing; give one of json, regex, choice, grammar, json_object.",
                param="structured_outputs",
            )
        return None
    first, *more = found
    if more:
        raise bad_request(f"{more[0].param!r} and {first.param!r} exclude each other; give one.", param=more[0].param)
    if len(first.source.encode()) > MOST_GRAMMAR_BYTES:
        raise bad_request(f"{first.param!r} has more than {MOST_GRAMMAR_BYTES} bytes.", param=first.param)
    check_company(body, first)
    return first


def check_company(body: AnswerOptions, first: Constraint) -> None:
    """Refuse what could leave no token that both permit. Raises ApiError 400."""
    reasons = {
        "min_tokens": (body.min_tokens, "which ends when it is complete"),
        "ignore_eos": (body.ignore_eos, "which ends when it is complete"),
        "allowed_token_ids": (body.allowed_token_ids, "which says itself what tokens are allowed"),
    }
    for param, (given, reason) in reasons.items():
        if given:
            raise bad_request(f"{param!r} does not go with {first.param!r}, {reason}; leave it out.", param=param)


def _constraints(body: AnswerOptions) -> Iterator[Constraint]:
    match body.response_format:
        case JsonObjectFormat():
            yield Constraint("response_format", "json", schema_text({"type": "object"}))
        case JsonSchemaFormat(named):
            if named.schema is None:
                raise bad_request(
                    "'json_schema' has no 'schema'; give one.", param="response_format.json_schema.schema"
                )
            yield Constraint("response_format", "json", schema_text(named.schema))
    if body.structured_outputs is not None:
        yield from _structured(body.structured_outputs)
    if body.guided_json is not None:
        yield Constraint("guided_json", "json", schema_text(_schema(body.guided_json, "guided_json")))
    if body.guided_regex is not None:
        yield Constraint("guided_regex", "regex", body.guided_regex)
    if body.guided_choice is not None:
        yield Constraint("guided_choice", "choice", _encoded(body.guided_choice))
    if body.guided_grammar is not None:
        yield Constraint("guided_grammar", "grammar", body.guided_grammar)


def _structured(asked: StructuredOutputs) -> Iterator[Constraint]:
    param = "structured_outputs"
    whitespace = "" if asked.disable_any_whitespace else asked.whitespace_pattern or WHITESPACE
    schemas = [] if asked.json is None else [(f"{param}.json", _schema(asked.json, f"{param}.json"))]
    if asked.json_object:
        schemas.append((f"{param}.json_object", {"type": "object"}))
    for name, schema in schemas:
        try:
            closed = _closed(schema) if asked.disable_additional_properties else schema
        except RecursionError:
            raise bad_request(f"{name!r} is nested too deeply; simplify it.", param=name) from None
        yield Constraint(name, "json", schema_text(closed, whitespace))
    if asked.regex is not None:
        yield Constraint(f"{param}.regex", "regex", asked.regex)
    if asked.choice is not None:
        yield Constraint(f"{param}.choice", "choice", _encoded(asked.choice))
    if asked.grammar is not None:
        yield Constraint(f"{param}.grammar", "grammar", asked.grammar)


def schema_text(schema: Schema, whitespace: str = WHITESPACE) -> str:
    """A schema as text, with this space between the parts of its JSON."""
    options = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    return _encoded({**schema, "x-guidance": options})


def _schema(given: Schema | str, param: str) -> Schema:
    if isinstance(given, dict):
        return given
    try:
        return msgspec.json.decode(given, type=Schema)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad_request(f"{param!r} is no JSON schema: {error}.", param=param) from None


def _closed(schema: Schema) -> Schema:
    """The schema, whose objects have no properties that it does not name."""
    closed = {
        name: value if name in VALUES else _closed_by_name(value) if name in BY_NAME else _closed_inside(value)
        for name, value in schema.items()
    }
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed_by_name(value: object) -> object:
    """Schemas by names that are the client's, and no keywords."""
    return {name: _closed_inside(one) for name, one in value.items()} if isinstance(value, dict) else value


def _closed_inside(value: object) -> object:
    if isinstance(value, dict):
        return _closed(value)
    return [_closed_inside(one) for one in value] if isinstance(value, list) else value


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()
