"""Learns the versions and sizes of a cluster's models."""

from collections.abc import Sequence
from contextlib import suppress

from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.history import History
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Named
from livescale.shared.subjects import MANIFEST

COMMAND_SECONDS = 5.0


async def learn_models(cluster: VirtualCluster, specs: Sequence[ModelSpec], history: History) -> None:
    """Note the version and the size of each model that is not known yet, where the registry tells them."""
    for spec in specs:
        if spec.name not in history.versions:
            with suppress(BusError):
                manifest = await cluster.operator.call(MANIFEST, Named(model=spec.name), timeout=COMMAND_SECONDS)
                history.versions[spec.name] = manifest.version
                history.sizes[spec.name] = manifest.size_bytes
