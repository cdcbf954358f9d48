"""Configuration files: YAML with the flags' names as keys. A key nobody knows is refused by name."""

import difflib
from pathlib import Path

import click
import msgspec
import yaml
from msgspec import inspect

from shared.bus.urls import hide_password
from shared.settings import Settings


def kebab(name: str) -> str:
    return name.replace("_", "-")


def read_config(path: Path, kind: type[Settings]) -> dict[str, object]:
    """The file's values by field name, checked against `kind`; fields it does not mention are left out."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    try:
        values = rename_keys({} if content is None else content, inspect.type_info(kind), "")
        assert isinstance(values, dict)
        return {name: check_value(name, value, fields[name]) for name, value in values.items()}
    except ValueError as error:
        raise click.UsageError(f"--config {path}: {error}") from None


def check_value(name: str, value: object, kind: object) -> object:
    """`value` as the field's type. Raises ValueError with the place in the file."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise ValueError(f"{kebab(name)}{kebab(place.rstrip('`'))}: {problem}") from None


def rename_keys(value: object, kind: inspect.Type, where: str) -> object:
    """`value` with kebab-case keys turned into field names, all the way down."""
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
            raise ValueError(f"must be a mapping of settings, not {type(value).__name__}")
        case _:
            return value


def find_key(key: object, known: dict[str, inspect.Field], where: str) -> inspect.Field:
    """The field that `key` names. Raises ValueError with the nearest key that exists."""
    if isinstance(key, str) and key in known:
        return known[key]
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    place = f" in {where}" if where else ""
    raise ValueError(
        f"unknown setting {str(key)!r}{place}; "
        + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}")
    )


def as_yaml(settings: Settings, secrets: tuple[str, ...] = ("api_key",)) -> str:
    """The settings as a configuration file. Secrets are masked."""

    def plain(value: object, name: str = "") -> object:
        match value:
            case dict():
                return {kebab(key): plain(each, key) for key, each in value.items()}
            case list() | tuple():
                return [plain(each, name) for each in value]
            case str() if name in secrets and value:
                return "***"
            case str() if name.endswith("_url"):
                return hide_password(value)
            case _:
                return value

    return yaml.safe_dump(plain(msgspec.to_builtins(settings)), sort_keys=False)
