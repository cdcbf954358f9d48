"""`livescale systems`: systems to compare with, each a name for some settings of `livescale up`."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

import click
import msgspec
import yaml

from livescale.services.cli.options import UpOptions, check_values
from livescale.services.cli.tables import open_console, print_rows
from livescale.shared.runtime.settings import Settings
from livescale.shared.runtime.yaml_file import convert, kebab, nearest_hint, read_yaml

SHIPPED = Path(str(resources.files("livescale.shared") / "systems.yaml"))
# A preset says how a system works, not which one it is, where it listens, and what serves it.
FOREIGN = {"system", "models", "config"}


class NamedSystem(Settings, frozen=True, kw_only=True):
    """A system to compare with: what it is, which figure of which paper it is for, and its settings by their names in
    a configuration file. One that is `simulated` loads in no time, which only modelled links and disks do."""

    about: str
    figure: str
    settings: Mapping[str, object]
    simulated: bool = False

    def values(self) -> dict[str, object]:
        """Its settings by field name. Raises ValueError for one that does not exist or does not fit."""
        foreign = sorted(FOREIGN & self.settings.keys())
        if foreign:
            raise ValueError(f"{foreign[0]} is no part of a system to compare with")
        return check_values(dict(self.settings), UpOptions)


class SystemRow(msgspec.Struct):
    """A row of the table that `livescale systems` prints."""

    name: str
    about: str
    figure: str
    settings: str


def read_systems(path: Path = SHIPPED) -> dict[str, NamedSystem]:
    """All systems by name. Raises ValueError, which names the file, the system and the setting."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must be a mapping, not {type(content).__name__}")
    found: dict[str, NamedSystem] = {}
    for name, entry in content.items():
        try:
            system = convert(entry, NamedSystem)
            assert isinstance(system, NamedSystem)
            system.values()
        except ValueError as error:
            raise ValueError(f"{path}: {name}: {error}") from None
        found[str(name)] = system
    return found


@cache
def shipped_systems() -> Mapping[str, NamedSystem]:
    return read_systems()


def find_system(name: str) -> NamedSystem:
    """The system of this name. Raises ValueError with the nearest name."""
    systems = shipped_systems()
    if name in systems:
        return systems[name]
    raise ValueError(f"unknown system {name!r}; {nearest_hint(name, systems)}")


def find_real_system(name: str) -> NamedSystem:
    """The system of this name, if it can be started. Raises ValueError."""
    system = find_system(name)
    if system.simulated:
        raise ValueError(f"{name} loads in no time, which real links cannot: try `livescale bench systems`")
    return system


def apply_system(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Let the other options take their defaults from this system, where the configuration file says nothing."""
    if name:
        try:
            ctx.default_map = {**find_real_system(name).values(), **(ctx.default_map or {})}
        except ValueError as error:
            raise click.UsageError(f"--system: {error}") from None
    return name


def as_env(system: NamedSystem) -> str:
    """The settings as lines of an environment file."""
    lines = (f"LIVESCALE_{name.upper()}={as_text(value)}" for name, value in system.values().items())
    return "\n".join(lines) + "\n"


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_flags(system: NamedSystem) -> str:
    return " ".join(as_flag(kebab(name), value) for name, value in system.values().items())


def as_flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


@click.command(name="systems")
@click.argument("name", required=False)
@click.option("--env", is_flag=True, help="Print the settings as environment variables instead of YAML.")
def systems(name: str | None, env: bool) -> None:
    """List systems to compare with, or print the settings of one of them.

    They are YAML for the --config of livescale up. `livescale up --system NAME` starts one, and
    `livescale bench systems` compares them on a trace.
    """
    if name is None:
        rows = [SystemRow(each, one.about, one.figure, as_flags(one)) for each, one in shipped_systems().items()]
        print_rows(open_console(), "Systems", rows)
        return
    try:
        system = find_real_system(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(as_env(system) if env else yaml.safe_dump(dict(system.settings), sort_keys=False), nl=False)
