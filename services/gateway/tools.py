"""Tools that a chat's request offers to the model: their form, and the checks of it. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.tool_calls.message import ParameterTypes

MOST_TOOLS = 128
LARGEST_SCHEMA = 64 << 10  # bytes of the parameters of one tool
LARGEST_SCHEMAS = 256 << 10  # of all tools together
DEEPEST_SCHEMA = 32
NAMES = re.compile(r"[a-zA-Z0-9_-]{1,64}")
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call, as a request describes it."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a function, as `tool_choice` gives it."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `tool_choice` that names the tool that the model has to call."""

    type: Literal["function"] = "function"
    function: FunctionName


Tools = Annotated[list[Tool], Meta(max_length=MOST_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: list[Tool] | None, choice: ToolChoice | None) -> None:
    """Check what the types of the fields cannot say. Raises ApiError 400 naming the field."""
    names: set[str] = set()
    room = LARGEST_SCHEMAS
    for index, tool in enumerate(tools or ()):
        function, path = tool.function, f"tools[{index}].function"
        if NAMES.fullmatch(function.name) is None:
            raise bad_request(
                f"The tool's name {function.name[:80]!r} is not allowed; give it 1 to 64 letters, digits, _ and -.",
                f"{path}.name",
            )
        if function.name in names:
            raise bad_request(f"Two tools are named {function.name!r}; rename one of them.", f"{path}.name")
        names.add(function.name)
        room -= _check_parameters(function.parameters, f"{path}.parameters")
        if room < 0:
            raise bad_request(f"The tools' parameters take more than {LARGEST_SCHEMAS} bytes together.", "tools")
    if choice is None or choice == "none":
        return
    if not names:
        raise bad_request("'tool_choice' is for requests with 'tools'; leave it out.", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise bad_request(
            f"'tool_choice' names {choice.function.name[:80]!r}, which is none of the tools.",
            "tool_choice.function.name",
        )


def _check_parameters(parameters: dict[str, Any] | None, path: str) -> int:
    """Check that this is a JSON schema of an object; returns its size."""
    if parameters is None:
        return 0
    size = len(msgspec.json.encode(parameters))
    if size > LARGEST_SCHEMA:
        raise bad_request(f"A tool's parameters take {size} bytes; {LARGEST_SCHEMA} are the most.", path)
    if parameters.get("type", "object") != "object":
        raise bad_request('A tool\'s parameters are an object; say "type": "object".', f"{path}.type")
    _check_schema(parameters, path, DEEPEST_SCHEMA)
    return size


def _check_schema(schema: object, path: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise bad_request("A schema must be an object, true or false.", path)
    if depth == 0:
        raise bad_request(f"A tool's parameters are nested more than {DEEPEST_SCHEMA} deep.", path)
    _check_words(schema, path)
    for key in _BY_NAME:
        for name, inner in _checked(schema, key, dict, path).items():
            _check_schema(inner, f"{path}.{key}.{name}", depth - 1)
    for key in _LISTS:
        for index, inner in enumerate(_checked(schema, key, list, path)):
            _check_schema(inner, f"{path}.{key}[{index}]", depth - 1)
    for key in _SINGLE:
        if key in schema and not isinstance(schema[key], list):  # older schemas have lists of items
            _check_schema(schema[key], f"{path}.{key}", depth - 1)


def _check_words(schema: dict[str, Any], path: str) -> None:
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if name not in TYPES:
            raise bad_request(f"{str(name)[:80]!r} is no type of JSON; there are {', '.join(TYPES)}.", f"{path}.type")
    if not all(isinstance(name, str) for name in _checked(schema, "required", list, path)):
        raise bad_request("'required' must be a list of names.", f"{path}.required")
    if "enum" in schema and not _checked(schema, "enum", list, path):
        raise bad_request("'enum' must list at least one value.", f"{path}.enum")


def _checked(schema: dict[str, Any], key: str, kind: type[Any], path: str) -> Any:  # noqa: ANN401 a list or dict
    value = schema.get(key, kind())
    if not isinstance(value, kind):
        raise bad_request(f"{key!r} of a schema must be {'an object' if kind is dict else 'a list'}.", f"{path}.{key}")
    return value


def for_template(tools: list[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates expect them."""
    told = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.function.name}
        if tool.function.description is not None:
            function["description"] = tool.function.description
        if tool.function.parameters is not None:
            function["parameters"] = tool.function.parameters
        told.append({"type": "function", "function": function})
    return told


def parameter_types(tools: list[Tool]) -> ParameterTypes:
    """By tool and parameter, the JSON types that its schema allows."""
    return {tool.function.name: _types_of((tool.function.parameters or {}).get("properties", {})) for tool in tools}


def _types_of(properties: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    return {name: frozenset(_said_types(schema)) for name, schema in properties.items()}


def _said_types(schema: object) -> list[str]:
    if not isinstance(schema, dict):
        return []
    said = schema.get("type", [])
    types = list(said) if isinstance(said, list) else [said]
    for key in ("anyOf", "oneOf"):
        for inner in schema.get(key, []):
            types += _said_types(inner)
    return types
