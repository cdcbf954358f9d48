"""What is installed is pinned, whatever a dependency itself allows."""

from importlib.metadata import distributions
from pathlib import Path

PINS = Path(__file__).parent.parent / "constraints.txt"
UNPINNED = {"livescale", "pip"}  # this project; what installs, as it came with Python


def normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def test_every_installed_package_has_the_version_that_is_pinned() -> None:
    pins = dict(line.split("==") for line in PINS.read_text().split())
    pinned = {normalized(name): version for name, version in pins.items()}
    installed = {normalized(found.metadata["Name"]): found.version for found in distributions()}
    strangers = {
        name: (version, pinned.get(name))
        for name, version in installed.items()
        if name not in UNPINNED and pinned.get(name) not in (version, version.partition("+")[0])
    }
    assert not strangers, f"installed, and pinned to: {strangers}"
