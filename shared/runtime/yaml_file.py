"""YAML files that people write: errors name the file, the place in it, and what to do."""

import difflib
import re
from collections.abc import Callable, Collection, Hashable
from functools import cache
from pathlib import Path

import msgspec
import yaml
from msgspec import inspect

MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")

INVALID_CHOICE = re.compile(r"Invalid enum value ")
FIRST_NAME = re.compile(r"\.(\w+)")


class UniqueKeys(yaml.SafeLoader):
    """A loader that refuses a key that is given twice. YAML forbids it, but the library takes the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def kebab(name: str) -> str:
    return name.replace("_", "-")


def names_file(text: str) -> bool:
    """Whether `text` means a file, and not the name of something that is shipped."""
    path = Path(text)
    return path.is_file() or path.suffix in (".yaml", ".yml") or path.name != text


def read_yaml(path: Path) -> object:
    """The file's content; an empty one is an empty mapping. Raises ValueError."""
    try:
        content = UniqueKeys(path.read_text(encoding="utf-8")).get_single_data()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    return {} if content is None else content


def convert(
    value: object, kind: object, where: str = "", dec_hook: Callable[[type, object], object] | None = None
) -> object:
    """Convert `value`, whose keys are renamed, to `kind`. Raises ValueError with its place: `hosts[0].nic: problem`."""
    try:
        return msgspec.convert(value, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        problem = MISSING_FIELD.sub(lambda found: f"{kebab(found[1])} is missing", problem)
        if INVALID_CHOICE.match(problem):
            problem = (
                f"{INVALID_CHOICE.sub('', problem)} is none of {', '.join(choices(inspect.type_info(kind), place))}"
            )
        where = kebab(where + place.rstrip("`")).lstrip(".")
        raise ValueError(f"{where}: {problem}" if where else problem) from None


def choices(kind: inspect.Type, place: str) -> list[str]:
    """The values that are allowed at a place, such as `.hosts[0].nic`, of `kind`."""
    match kind:
        case inspect.Metadata(type=inner):
            return choices(inner, place)
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in choices(each, place)]
        case inspect.LiteralType(values=values):
            return [str(value) for value in values]
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return choices(item, place.partition("]")[2])
        case inspect.StructType(fields=fields):
            name = FIRST_NAME.match(place)
            return [
                choice
                for field in fields
                if name and field.name == name[1]
                for choice in choices(field.type, place[name.end() :])
            ]
        case _:
            return []


@cache
def type_of(kind: type) -> inspect.Type:
    """What `rename_keys` has to know of `kind`, which takes long to find out."""
    return inspect.type_info(kind)


def rename_keys(value: object, kind: inspect.Type, where: str = "") -> object:
    """`value` with kebab-case keys turned into field names, all the way down. Raises ValueError for unknown keys."""
    match kind:
        case inspect.Metadata(type=inner):
            return rename_keys(value, inner, where)
        case inspect.UnionType(types=types):
            return rename_keys(value, next(t for t in types if not isinstance(t, inspect.NoneType)), where)
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            return [rename_keys(each, item, f"{where}[{index}]") for index, each in enumerate(value)]
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            known = {kebab(field.name): field for field in fields}
            found = [(find_key(key, known, where), each) for key, each in value.items()]
            return {
                field.name: rename_keys(each, field.type, f"{where}.{kebab(field.name)}".lstrip("."))
                for field, each in found
            }
        case inspect.StructType() if not where:
            raise ValueError(f"must be a mapping, not {type(value).__name__}")
        case _:
            return value


def find_key(key: object, known: dict[str, inspect.Field], where: str) -> inspect.Field:
    """The field that `key` names. Raises ValueError with the nearest key that exists."""
    if isinstance(key, str) and key in known:
        return known[key]
    place = f" in {where}" if where else ""
    raise ValueError(f"unknown key {str(key)!r}{place}; {nearest_hint(str(key), sorted(known))}")


def nearest_hint(name: str, known: Collection[str]) -> str:
    """What an error about an unknown name ends with: the nearest one, or all that are known."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
