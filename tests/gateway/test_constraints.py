"""What form of the answer a body asks for: one, by any of its names, with nothing that contradicts it."""

import msgspec
import pytest

from livescale.services.gateway.bodies import CompletionRequest
from livescale.services.gateway.constraints import constraint_of
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.parse import parse_body

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
NAMED = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA, "strict": True}}


def body(**fields: object) -> CompletionRequest:
    return parse_body(msgspec.json.encode({"prompt": "a", **fields}), CompletionRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": NAMED},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
        {"guided_json": SCHEMA},
        {"guided_json": msgspec.json.encode(SCHEMA).decode()},
    ],
)
def test_a_schema_is_the_same_by_every_name(fields: dict[str, object]) -> None:
    constraint = constraint_of(body(**fields))
    assert constraint is not None
    told = msgspec.json.decode(constraint.source)
    assert constraint.kind == "json"
    assert {name: told[name] for name in SCHEMA} == SCHEMA  # "false" included


def test_free_text_has_no_form() -> None:
    assert constraint_of(body()) is None
    assert constraint_of(body(response_format={"type": "text"})) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": NAMED, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"guided_regex": "a", "min_tokens": 1}, "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"guided_regex": "a" * 70_000}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"guided_choice": []}, "guided_choice"),
    ],
)
def test_contradictions_are_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        constraint_of(body(**fields))
    assert (caught.value.detail.param or "").startswith(param)


def test_a_schema_that_is_too_deep_to_be_closed_is_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(600):
        deep = {"items": deep}
    with pytest.raises(ApiError) as caught:
        constraint_of(body(structured_outputs={"json": deep, "disable_additional_properties": True}))
    assert caught.value.detail.param == "structured_outputs.json"


def test_objects_can_be_closed_and_space_forbidden() -> None:
    asked = {"json": {"properties": {"a": {"properties": {}}}}, "disable_additional_properties": True}
    constraint = constraint_of(body(structured_outputs={**asked, "disable_any_whitespace": True}))
    assert constraint is not None
    told = msgspec.json.decode(constraint.source)
    assert told["additionalProperties"] is told["properties"]["a"]["additionalProperties"] is False
    assert told["x-guidance"] == {"whitespace_flexible": False}


def test_values_and_names_in_a_schema_are_left_as_they_are() -> None:
    value = {"properties": {"a": 1}}
    schema = {"properties": {"const": value, "properties": {"type": "string"}}, "enum": [value], "default": value}
    found = constraint_of(body(structured_outputs={"json": schema, "disable_additional_properties": True}))
    assert found is not None
    closed = msgspec.json.decode(found.source)
    assert (closed["enum"], closed["default"]) == ([value], value)
    assert closed["additionalProperties"] is False
    assert closed["properties"]["properties"] == {"type": "string"}
    assert closed["properties"]["const"]["additionalProperties"] is False
