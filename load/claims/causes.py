"""The claims that are known to fail, each with its cause: a list that people review."""

from importlib import resources

from msgspec import yaml

FILE = "reviewed.yaml"


def reviewed_causes() -> dict[str, str]:
    """Why claims fail, by their ids: causes that somebody has looked into and written down."""
    text = (resources.files("livescale.load.claims") / FILE).read_bytes()
    return yaml.decode(text, type=dict[str, str])
