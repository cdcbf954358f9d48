"""From a request's HTTP body to a checked struct.

What is malformed, unknown, unsupported or mistyped is refused by name.
"""

import asyncio
import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import Request

from livescale.services.gateway.errors import ApiError, bad_request
from livescale.services.gateway.parameters import IGNORED, PARTS, REFUSED, Refused

MOST_SHOWN = 12
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")


def allowed_values(struct: type[msgspec.Struct], path: str) -> Sequence[object]:
    """The values that are allowed at such a path as `messages[0].role`, in order; none where these are not a few."""
    found: list[inspect.Type] = [_described(struct)]
    *steps, last = _STEP.findall(path) or [""]
    for step in steps:
        found = [inner for one in found for inner in _inside(one, step)]
    values = [value for one in found for value in _values(one, last)]
    values += [tag for one in found for tag in _tags(one, last)]
    known = list(dict.fromkeys(values))
    return known if len(known) <= MOST_SHOWN else []


@lru_cache
def _described(struct: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(struct)


def _values(outer: inspect.Type, step: str) -> Iterator[Any]:
    for inner in _inside(outer, step):
        for one in _alternatives(inner):
            if isinstance(one, inspect.LiteralType):
                yield from one.values
            elif isinstance(one, inspect.EnumType):
                yield from (member.value for member in one.cls)


def _tags(outer: inspect.Type, step: str) -> Iterator[Any]:
    """What tells structs of a union apart, if that is what `step` names."""
    for one in _alternatives(outer):
        if isinstance(one, inspect.StructType) and one.tag_field == step:
            yield one.tag


def _inside(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """The types of what a field's name or an index leads to."""
    for one in _alternatives(outer):
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == step)
        elif isinstance(one, inspect.CollectionType) and step.startswith("["):
            yield one.item_type
        elif isinstance(one, inspect.DictType):
            yield one.value_type


def _alternatives(one: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(one, inspect.Metadata):
        yield from _alternatives(one.type)
    elif isinstance(one, inspect.UnionType):
        for inner in one.types:
            yield from _alternatives(inner)
    else:
        yield one


T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_OTHER = ("Invalid enum value", "Invalid value")
_KEY = " - at `key` in "
_FIELD = re.compile(r"(?:missing required|unknown) field `(?P<field>[^`]*)`")

SHOWN_KEYS, SHOWN_CHARACTERS = 8, 40  # of those that are wrong
TEXT = frozenset(("text",))
GZIP = b"\x1f\x8b"
BODY_TIMEOUT_SECONDS = 30.0
# Variables of the template, and schemas: there false is not the same as absent.
_AS_GIVEN = frozenset({"chat_template_kwargs", "response_format", "structured_outputs", "guided_json"})


async def read_body(request: Request, limit: int) -> bytes:
    """Read the whole body. Raises ApiError 413 beyond `limit` bytes, 408 where it does not come in time, and 415 where
    it is compressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415, f"The body is encoded as {encoding!r}; send it as plain JSON.", code="unsupported_content_encoding"
        )
    too_large = ApiError(413, f"The body is larger than {limit} bytes.", code="request_too_large")
    if int(request.headers.get("content-length", 0)) > limit:  # the HTTP parser has checked that it is a number
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {BODY_TIMEOUT_SECONDS:.0f} s.", code="timeout") from None
    return bytes(body)


def parse_body(data: bytes, type: type[T], prepare: Callable[[dict[str, Any]], None] = lambda body: None) -> T:
    """Decode `data` to a checked `type`; null is the same as absent. What clients may write in several ways `prepare`
    writes in one. Raises ApiError 400 naming the parameter at fault."""
    try:
        body = msgspec.json.decode(_utf8(data))
    except UnicodeDecodeError:  # it tells a place within one of the texts, and of which nobody knows
        raise bad_request("The body has bytes that are not UTF-8, as JSON is.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply; simplify it.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.")
    nulls = [name for name, value in body.items() if value is None]
    body = {name: value for name, value in body.items() if value is not None}
    for name in IGNORED.get(type, {}).keys() & body.keys():
        del body[name]
    _refuse_unsupported(body, REFUSED.get(type, {}))
    _refuse_unknown(body, type)
    _refuse_null(nulls, type)
    _refuse_other_parts(body.get("messages"), PARTS.get(type, TEXT))
    prepare(body)
    try:
        given = {name: value if name in _AS_GIVEN else _without_empty(value) for name, value in body.items()}
        return msgspec.convert(given, type, str_keys=True)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), body, type) from None


def _utf8(data: bytes) -> bytes:
    """The body without a byte-order mark. Raises ApiError 400 for the other encodings that JSON once had, and for what
    is compressed without a word of it in the headers."""
    if data.startswith(GZIP):
        raise bad_request("The body is compressed by gzip; send it as plain JSON.", code="invalid_json")
    encoding = json.detect_encoding(data)
    if encoding in ("utf-8", "utf-8-sig"):
        return data.removeprefix(codecs.BOM_UTF8)
    raise bad_request(f"The body is {encoding.upper()}; JSON is sent as UTF-8.", code="invalid_json")


def _refuse_null(nulls: Sequence[str], struct: type[msgspec.Struct]) -> None:
    """Refuse null where a parameter has to be given: elsewhere it says as much as nothing."""
    for name in nulls:
        if name in _required(struct):
            raise bad_request(f"{name!r} is null; give it a value.", name, code="invalid_value")


def _refuse_other_parts(messages: object, known: frozenset[str]) -> None:
    """Refuse parts of a conversation that are not `known`, such as sounds and files, by their type, and not for the
    fields that they have."""
    for place, message in enumerate(messages if isinstance(messages, list) else []):
        parts = message.get("content") if isinstance(message, dict) else None
        for index, part in enumerate(parts if isinstance(parts, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind not in known:
                param = f"messages[{place}].content[{index}].type"
                only = "Only text is" if "text" in known else "Only images are"
                raise bad_request(
                    f"{only} understood: a part of type {kind!r} is not ({param!r}).", param, "invalid_value"
                )


def _refuse_unsupported(body: dict[str, Any], refused: Mapping[str, Refused]) -> None:
    """Refuse parameters that are not supported, and take those out of `body` whose value asks for nothing."""
    for name in refused.keys() & body.keys():
        if not _is_one_of(body.pop(name), refused[name].neutral):
            raise bad_request(
                f"The parameter {name!r} is refused. {refused[name].reason}.", name, code="unsupported_parameter"
            )


def _is_one_of(value: object, neutral: tuple[object, ...]) -> bool:
    """Whether the value equals one of these and is of its kind: in JSON, `false` is not 0."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _refuse_unknown(body: Mapping[str, Any], struct: type[msgspec.Struct], path: str = "") -> None:
    fields = _fields(struct)
    for name, value in body.items():
        # The tag field of a message is allowed, though a client need not send it.
        if name not in fields and name != struct.__struct_config__.tag_field:
            raise bad_request(f"Unknown parameter: {path + name!r}.", path + name, code="unknown_parameter")
        inner = fields.get(name)
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _refuse_unknown(value, inner, f"{path}{name}.")


@lru_cache
def _fields(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The type of each field, by its name in JSON."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


@lru_cache
def _required(struct: type[msgspec.Struct]) -> frozenset[str]:
    """The names in JSON of fields that have to be given. msgspec looks fields up anew at every call, which takes longer
    than all else that is done with a body."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(struct) if field.required)


def _without_empty(value: object) -> object:
    """Drop fields that are null, empty or false inside a parameter, as clients send back what answers contained."""
    if isinstance(value, list):
        return [_without_empty(one) for one in value] if dict in set(map(type, value)) else value
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if not (one is None or one is False or one in ([], {}))}
    return value


def _wrong_type(message: str, body: Mapping[str, Any], struct: type[msgspec.Struct]) -> ApiError:
    path = _PATH.search(message)
    field = _FIELD.search(message)
    parts = [path["path"] if path else "", field["field"] if field else ""]
    param = ".".join(part for part in parts if part) or None
    plain = _PATH.sub("", message)
    if _KEY in message and param is not None and isinstance(keys := body.get(param), dict):
        wrong = [key for key in keys if not key.isdecimal()]
        plain += f": {', '.join(repr(key[:SHOWN_CHARACTERS]) for key in wrong[:SHOWN_KEYS])}"
    if plain.startswith(_OTHER) and (allowed := allowed_values(struct, param or "")):
        plain += f"; it is one of {', '.join(map(repr, allowed))}"
    return bad_request(f"{plain}{f' (parameter {param!r})' if param else ''}.", param, code="invalid_value")
