"""Topology files: found, read and checked. Cluster topologies that are shipped lie in `shared/topologies`."""

from importlib import resources
from pathlib import Path

from msgspec import inspect

from livescale.shared.runtime.yaml_file import convert, names_file, read_yaml, rename_keys
from livescale.shared.topology.entries import TopologyFile, expand
from livescale.shared.topology.topology import Topology
from livescale.shared.units import Rate, Size, parse_rate, parse_size

SHIPPED = resources.files("livescale.shared") / "topologies"


def find_topology(text: str) -> Topology:
    """A file, or a topology that is shipped, by its name. Raises ValueError."""
    if names_file(text):
        return read_topology(Path(text))
    names = shipped_topologies()
    if text not in names:
        raise ValueError(f"there is no topology {text!r}; give a YAML file or one of {', '.join(names)}")
    with resources.as_file(SHIPPED / f"{text}.yaml") as path:
        return read_topology(path)


def shipped_topologies() -> list[str]:
    return sorted(Path(entry.name).stem for entry in SHIPPED.iterdir())


def read_topology(path: Path) -> Topology:
    """Raises ValueError that names the file, the place in it, and what to do."""
    content = read_yaml(path)
    try:
        values = rename_keys(content, inspect.type_info(TopologyFile))
        file = convert(values, TopologyFile, dec_hook=parse_quantity)
        assert isinstance(file, TopologyFile)
        return expand(file, path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_quantity(kind: type, value: object) -> Size | Rate:
    return parse_size(value) if kind is Size else parse_rate(value)
