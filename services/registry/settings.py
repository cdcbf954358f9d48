"""What the registry can be told."""

from typing import Annotated

from msgspec import Meta

from shared.settings import ProcessSettings, TopologyName


class RegistrySettings(ProcessSettings, frozen=True, kw_only=True):
    """The registry: membership, leases, models."""

    suspect_seconds: Annotated[float, Meta(description="Silence after which a process is suspected", gt=0)] = 1.5
    dead_seconds: Annotated[float, Meta(description="Silence after which a process is declared dead", gt=0)] = 2.5
    topology: TopologyName = ""
