"""Latencies by name: those that are shipped, and files with one of this machine's own."""

from importlib import resources
from pathlib import Path

from livescale.shared.model.latency import Latency
from livescale.shared.runtime.yaml_file import convert, names_file, read_yaml

SHIPPED = resources.files("livescale.shared") / "latencies.yaml"


def find_latency(text: str) -> Latency:
    """A file, or a latency that is shipped, by its name. Raises ValueError."""
    if names_file(text):
        return _read(Path(text))
    shipped = shipped_latencies()
    if text not in shipped:
        raise ValueError(
            f"engine-profile: there is no {text!r}; give a file that `livescale profile` wrote, or one of "
            f"{', '.join(shipped)}"
        )
    return shipped[text]


def shipped_latencies() -> dict[str, Latency]:
    """By model and GPU."""
    with resources.as_file(SHIPPED) as path:
        content = convert(read_yaml(path), dict[str, Latency])
    assert isinstance(content, dict)
    return content


def _read(path: Path) -> Latency:
    try:
        latency = convert(read_yaml(path), Latency)
    except ValueError as error:
        named = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"engine-profile: {path}: {named}") from None
    assert isinstance(latency, Latency)
    return latency
