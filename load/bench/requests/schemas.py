"""Schemas that `livescale bench requests` asks answers by: unlike, and bounded, so that a model that says anything at
all comes to their end."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
PATTERNS = ("[A-Z]{2}-[0-9]{3}", "(red|green|blue)[0-9]{1,2}", "[a-f0-9]{8}", "\\+[0-9]{2} [0-9]{3,7}")
DEPTH = 2


def make_schema(number: int) -> Schema:
    """Schema `number`: an object with properties of several kinds, some of them by `$ref`."""
    chance = random.Random(number)
    shared = {"size": _number(chance), "tag": _text(chance)}
    schema = _object(chance, DEPTH)
    schema["properties"]["ref"] = {"$ref": f"#/$defs/{chance.choice(sorted(shared))}"}
    schema["required"].append("ref")
    return {**schema, "$defs": shared, "title": f"thing {number}"}


def _object(chance: random.Random, depth: int) -> Schema:
    properties = {f"{chance.choice('abcdefgh')}{place}": _any(chance, depth) for place in range(chance.randint(2, 4))}
    required = [name for name in properties if chance.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _any(chance: random.Random, depth: int) -> Schema:
    kinds: list[Callable[[random.Random], Schema]] = [_number, _text, _choice, _pattern]
    if depth:
        kinds += [
            lambda chance: _object(chance, depth - 1),
            lambda chance: {"type": "array", "items": _any(chance, depth - 1), "maxItems": chance.randint(1, 3)},
            lambda chance: {"anyOf": [{"type": "null"}, _any(chance, depth - 1)]},
        ]
    return chance.choice(kinds)(chance)


def _number(chance: random.Random) -> Schema:
    least = chance.randint(-50, 50)
    return {"type": "integer", "minimum": least, "maximum": least + chance.randint(1, 5_000)}


def _text(chance: random.Random) -> Schema:
    least = chance.randint(0, 8)
    return {"type": "string", "minLength": least, "maxLength": least + chance.randint(2, 20)}


def _choice(chance: random.Random) -> Schema:
    return {"enum": chance.sample(["one", "two", 3, None, True, "a longer one"], 3)}


def _pattern(chance: random.Random) -> Schema:
    return {"type": "string", "pattern": f"^{chance.choice(PATTERNS)}$"}
