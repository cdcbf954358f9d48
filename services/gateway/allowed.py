"""Which values a parameter may have, where it has to be one of a few: what an error about it tells. Pure."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

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
