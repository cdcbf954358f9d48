"""The adapters of a random system: which there are, which requests use them, and how many a worker may keep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from msgspec.structs import replace

from livescale.load.simulate.disk import made_up_adapter
from livescale.load.simulate.seeds.asks import SeedAsk
from livescale.load.simulate.seeds.history import SeedFault
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import ModelConfig

SHARE = 0.2  # of all seeds


def has_adapters(seed: int) -> bool:
    """Whether some requests of the system of a seed use adapters."""
    return Random(f"adapters {seed}").random() < SHARE


def random_adapters(chance: Random, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """One adapter or a few for each model."""
    return [
        ModelSpec(name=f"{spec.name}-{number}", path=f"/adapters/{spec.name}-{number}", base=spec.name)
        for spec in specs
        for number in range(chance.randint(1, 4))
    ]


def with_adapters(chance: Random, asks: Sequence[SeedAsk], adapters: Sequence[ModelSpec]) -> list[SeedAsk]:
    """The same requests, of which many use an adapter of their model."""
    names = {model: [one.name for one in adapters if one.base == model] for model in {ask.model for ask in asks}}
    return [replace(ask, adapter=chance.choice([None, *names[ask.model]])) for ask in asks]


def random_changes(chance: Random, adapters: Sequence[ModelSpec], latest: float) -> list[SeedFault]:
    """Times at which an adapter gets another content, or is removed for a while."""
    changes: list[SeedFault] = []
    for _ in range(chance.choice((0, 0, 1, 2))):
        adapter, at = chance.choice(adapters), chance.uniform(0.0, latest)
        if chance.random() < 0.5:
            changes.append(SeedFault(at, "update", adapter.name, other=f"{adapter.path}.2"))
        else:
            changes.append(SeedFault(at, "remove", adapter.name, chance.choice((0.0, 0.2, 2.0, 8.0))))
    return changes


def with_little_room(chance: Random, worker: WorkerSettings, configs: Mapping[str, ModelConfig]) -> WorkerSettings:
    """The same worker, which in most systems cannot keep all adapters at once."""
    tellers = [(Path(path), config) for path, config in configs.items() if config.pooling == "none"]
    largest = max(made_up_adapter(path, config, "bfloat16").size_bytes for path, config in tellers)
    kept = chance.choice((1, 2, 2, 8))
    return replace(worker, adapter_bytes=kept * largest)
