"""Learns the versions and sizes of a cluster's models."""

from collections.abc import Sequence
from contextlib import suppress

from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.asks import SeedAsk
from livescale.load.simulate.seeds.evidence import token_frames
from livescale.load.simulate.seeds.history import History, index_of
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Named
from livescale.shared.subjects import MANIFEST

COMMAND_SECONDS = 5.0


async def learn_models(cluster: VirtualCluster, specs: Sequence[ModelSpec], history: History) -> None:
    """Note the version that each model has now, and its size, where the registry tells them."""
    for spec in specs:
        with suppress(BusError):
            manifest = await cluster.operator.call(MANIFEST, Named(model=spec.name), timeout=COMMAND_SECONDS)
            note_version(history, spec.name, manifest.version)
            history.sizes[manifest.version] = manifest.size_bytes


def note_version(history: History, model: str, version: str) -> None:
    """Note that a model has this version, or has had it."""
    versions = history.versions.setdefault(model, [])
    if version not in versions:
        versions.append(version)


def learn_from_tokens(asks: Sequence[SeedAsk], history: History) -> None:
    """Note the versions that made tokens. Nobody may have asked for one between two updates."""
    models = {ask.ask.index: ask.model for ask in asks}
    for frame in token_frames(history):
        if frame.version is not None:
            for row in frame.rows:
                note_version(history, models[index_of(row.request_id)], frame.version)
