"""Click options and configuration files made from a settings struct; those of a whole system are its own, and those of
workers that it passes on to all of them.

Each field is one flag, one environment variable, and one key of a YAML file, where an unknown key is refused by name.
"""

import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click
import msgspec
import yaml
from msgspec import inspect
from msgspec.structs import FieldInfo

from livescale.services.supervisor.settings import StackSettings
from livescale.shared.bus.identity import hide_password
from livescale.shared.runtime.settings import Settings
from livescale.shared.runtime.yaml_file import convert, kebab, read_yaml, rename_keys, type_of

S = TypeVar("S", bound=Settings)
Preset = Callable[[click.Context, click.Parameter, str], str]

# Variables that count beside LIVESCALE_<NAME>.
OTHER_VARIABLES = {
    name: [name.upper()]
    for name in ("nats_url", "nats_login", "nats_creds", "nats_nkey", "nats_ca", "nats_cert", "nats_key")
}


def read_config(path: Path, kind: type[Settings]) -> dict[str, object]:
    """The file's values by field name, checked against `kind`. Fields that it does not mention are left out."""
    try:
        content = read_yaml(path)
    except ValueError as error:
        raise click.UsageError(f"--config {error}") from None
    try:
        return check_values(content, kind)
    except ValueError as error:
        raise click.UsageError(f"--config {path}: {error}") from None


def check_values(content: object, kind: type[Settings]) -> dict[str, object]:
    """Some settings of `kind` by field name, from a mapping with the keys of a file. Raises ValueError."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values = rename_keys(content, type_of(kind))
    assert isinstance(values, dict)
    return {name: convert(value, fields[name], name) for name, value in values.items()}


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


class Pattern(click.ParamType[str]):
    """The type of a text option that has to match a regular expression."""

    name = "text"

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.search(self._pattern, str(value)):
            self.fail(f"{value!r} does not match the pattern {self._pattern}", param, ctx)
        return str(value)


def settings_options(
    kind: type[S],
    passed_on: Mapping[str, Sequence[FieldInfo]] = MappingProxyType({}),
    presets: Mapping[str, Preset] = MappingProxyType({}),
    **types: click.ParamType[Any],
) -> Callable[[Callable[[S], None]], Callable[..., None]]:
    """Decorate a function of `kind` so that click can call it; `types` gives single fields a type of their own.

    `passed_on` has, for a field of `kind` that is a mapping, fields of another struct. Each of those is an option in
    its place, and the mapping gets the values that are given, by name.

    `presets` has callbacks of fields that change the defaults of others. They are called after the configuration file
    was read, whose values go before theirs.
    """
    shown = flatten(kind, passed_on)

    def decorate(command: Callable[[S], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(print_config: bool, **values: object) -> None:
            settings = _convert(values, shown)
            if print_config:
                click.echo(as_yaml(settings), nl=False)
            else:
                command(gather(settings, kind, passed_on))

        options = [
            *own_options(shown, passed_on, presets, types),
            click.option(
                "--print-config",
                is_flag=True,
                help="Print the settings that count in the end, as YAML for --config, and exit.",
            ),
        ]
        for option in reversed(options):
            option(call)
        return call

    return decorate


def own_options(
    shown: type[Settings],
    passed_on: Mapping[str, Sequence[FieldInfo]],
    presets: Mapping[str, Preset],
    types: Mapping[str, click.ParamType[Any]],
) -> Iterator[Callable[[Any], Any]]:
    """The options of all fields, and that of the configuration file before those of `presets`."""
    elsewhere = {field.name: str(field.default) for fields in passed_on.values() for field in fields}
    plain = [field for field in fields_of(shown) if field.name not in presets]
    yield from (field_option(field, types.get(field.name), elsewhere.get(field.name)) for field in plain)
    yield config_option(shown)
    for field in fields_of(shown):
        if field.name in presets:
            yield field_option(field, None, preset=presets[field.name])


def _convert(values: dict[str, object], kind: type[S]) -> S:
    try:
        settings = convert(values, kind)
    except ValueError as error:  # a rule that no single option can check
        raise click.UsageError(str(error)) from None
    assert isinstance(settings, kind)
    return settings


def flatten(kind: type[Settings], passed_on: Mapping[str, Sequence[FieldInfo]]) -> type[Settings]:
    """Return `kind` with the fields of `passed_on` in place of the mappings that they go into. Fields that are not
    given are None."""
    if not passed_on:
        return kind
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(kind):
        if field.name in passed_on:
            fields += [(each.name, each.type | None, None) for each in passed_on[field.name]]
        else:
            fields.append((field.name, field.type, field.default))
    flat = msgspec.defstruct(kind.__name__, fields, bases=(Settings,), frozen=True, kw_only=True)
    assert issubclass(flat, Settings)
    return flat


def gather(settings: Settings, kind: type[S], passed_on: Mapping[str, Sequence[FieldInfo]]) -> S:
    """Return settings of `kind` from those of its flattened form: the inverse of `flatten`."""
    values = msgspec.structs.asdict(settings)
    for mapping, fields in passed_on.items():
        given = {field.name: values.pop(field.name) for field in fields}
        values[mapping] = {name: value for name, value in given.items() if value is not None}
    return kind(**values)


def fields_of(kind: type[Settings]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def config_option(kind: type[Settings]) -> Callable[[Any], Any]:
    def read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is not None:
            # A preset may have been read before it.
            ctx.default_map = {**(ctx.default_map or {}), **read_config(path, kind)}

    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=read,
        expose_value=False,
        envvar="LIVESCALE_CONFIG",
        show_envvar=True,
        is_eager=True,  # the other options take their defaults from the file
        help="YAML file with these options as keys, without the leading dashes; it is read first, so that flags and "
        "variables count before it.",
    )


def field_option(
    field: inspect.Field,
    special: click.ParamType[Any] | None,
    elsewhere: str | None = None,
    preset: Preset | None = None,
) -> Callable[[Any], Any]:
    """The option of one field: name, variable, help, bounds and default as the struct states them.

    `elsewhere` is the default that counts where the option is left out, of a field that is passed on. A `preset` is
    called before other options take their defaults.
    """
    inner, description = unwrap(field.type)
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    flag = kebab(field.name)
    attributes: dict[str, Any] = {
        "default": default,
        "envvar": [f"LIVESCALE_{field.name.upper()}", *OTHER_VARIABLES.get(field.name, [])],
        "show_envvar": True,
        "show_default": elsewhere or default not in (None, "", ()),
        "help": f"{description}.",
        **({} if preset is None else {"callback": preset, "is_eager": True}),
    }
    if isinstance(inner, inspect.BoolType):
        return click.option(f"--{flag}/--no-{flag}", field.name, **attributes)
    if isinstance(inner, inspect.VarTupleType):
        # "models" holds several and "--model" is given once for each.
        attributes["multiple"] = True
        flag = flag.removesuffix("s")
        inner, _ = unwrap(inner.item_type)
    return click.option(f"--{flag}", field.name, type=special or click_type(inner), **attributes)


def unwrap(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type behind `Annotated` and `| None`, and the description on the way."""
    description = ""
    while True:
        match kind:
            case inspect.Metadata(type=inner, extra_json_schema=schema):
                description = description or (schema or {}).get("description", "")
                kind = inner
            case inspect.UnionType(types=types):
                kind = next(each for each in types if not isinstance(each, inspect.NoneType))
            case _:
                return kind, description


def click_type(kind: inspect.Type) -> click.ParamType[Any]:
    match kind:
        case inspect.IntType(ge=None, le=None, gt=None, lt=None):
            return click.INT
        case inspect.FloatType(ge=None, le=None, gt=None, lt=None):
            return click.FLOAT
        case inspect.IntType():
            return click.IntRange(**bounds(kind))
        case inspect.FloatType():
            return click.FloatRange(**bounds(kind))
        case inspect.LiteralType(values=values):
            return click.Choice(list(values))
        case inspect.StrType(pattern=str(pattern)):
            return Pattern(pattern)
        case inspect.StrType():
            return click.STRING
        case _:
            raise TypeError(f"no flag can be made of {kind}")


def bounds(kind: inspect.IntType | inspect.FloatType) -> dict[str, Any]:
    return {
        "min": kind.ge if kind.ge is not None else kind.gt,
        "max": kind.le if kind.le is not None else kind.lt,
        "min_open": kind.gt is not None,
        "max_open": kind.lt is not None,
    }


def options_of_workers() -> dict[str, list[FieldInfo]]:
    """The fields of a worker's settings that are options of a system too, by their group in its help."""
    # By name, as `livescale run` knows the services.
    found: dict[str, list[FieldInfo]] = {}
    for field in msgspec.structs.fields(importlib.import_module("livescale.services.worker.settings").WorkerSettings):
        info = inspect.type_info(field.type)
        if isinstance(info, inspect.Metadata) and info.extra is not None and "up" in info.extra:
            found.setdefault(info.extra["up"], []).append(field)
    return found


WORKER_OPTIONS = options_of_workers()
PASSED_ON = {"worker_options": list(chain(*WORKER_OPTIONS.values()))}
# All options of `livescale up`, by the names of its flags.
UpOptions = flatten(StackSettings, PASSED_ON)
