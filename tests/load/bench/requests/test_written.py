"""Answers of the bench: valid where they are JSON that their own schema allows."""

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from livescale.load.bench.requests.schemas import make_schema
from livescale.load.bench.requests.written import Written


def least(schema: dict[str, Any], defs: dict[str, Any]) -> Any:
    """Something that a schema of the bench allows."""
    match schema:
        case {"$ref": name}:
            return least(defs[name.removeprefix("#/$defs/")], defs)
        case {"anyOf": [first, *_]}:
            return least(first, defs)
        case {"enum": [first, *_]}:
            return first
        case {"pattern": pattern}:
            texts = ("AB-123", "red1", "0123abcd", "+49 1234")
            return next(text for text in texts if jsonschema_rs.is_valid({"pattern": pattern}, text))
        case {"type": "integer", "minimum": number}:
            return number
        case {"type": "string"}:
            return "x" * schema["minLength"]
        case {"type": "object"}:
            return {name: least(schema["properties"][name], defs) for name in schema["required"]}
        case {"type": "array"}:
            return []
    return None


def written(number: int, text: str) -> Written:
    return Written(number, [1], text, "stop")


@pytest.mark.parametrize("number", range(8))
def test_an_answer_is_valid_by_its_own_schema(number: int) -> None:
    schema = make_schema(number)
    answer = least(schema, schema["$defs"])
    assert written(number, msgspec.json.encode(answer).decode()).is_valid
    del answer["ref"]
    assert not written(number, msgspec.json.encode(answer).decode()).is_valid


@pytest.mark.parametrize("text", ["", "{", "no", "[]", "{} {}"])
def test_what_is_no_such_json_is_not_valid(text: str) -> None:
    assert not written(0, text).is_valid
