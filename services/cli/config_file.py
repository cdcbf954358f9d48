"""Configuration files: YAML with the flags' names as keys. A key nobody knows is refused by name."""

from pathlib import Path

import click
import msgspec
import yaml
from msgspec import inspect

from livescale.shared.bus.identity import hide_password
from livescale.shared.runtime.settings import Settings
from livescale.shared.runtime.yaml_file import convert, kebab, read_yaml, rename_keys


def read_config(path: Path, kind: type[Settings]) -> dict[str, object]:
    """The file's values by field name, checked against `kind`; fields it does not mention are left out."""
    try:
        content = read_yaml(path)
    except ValueError as error:
        raise click.UsageError(f"--config {error}") from None
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    try:
        values = rename_keys(content, inspect.type_info(kind))
        assert isinstance(values, dict)
        return {name: convert(value, fields[name], name) for name, value in values.items()}
    except ValueError as error:
        raise click.UsageError(f"--config {path}: {error}") from None


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
