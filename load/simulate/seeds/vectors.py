"""Models of a random system that make vectors of prompts, and no tokens."""

from collections.abc import Collection, Sequence
from random import Random

from msgspec.structs import replace

from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.seeds.asks import SeedAsk, Wishes
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Pooling

SHARE = 0.1  # of all seeds
LONGEST_PROMPT = 1_024


def vector_models(seed: int, specs: Sequence[ModelSpec]) -> set[str]:
    """The names of the models that make vectors: in one system of ten one of them."""
    chance = Random(f"vectors {seed}")
    return {chance.choice(specs).name} if chance.random() < SHARE else set()


def making_vectors(chance: Random, cluster: VirtualClusterSettings, spec: ModelSpec) -> VirtualClusterSettings:
    """The same cluster, in which the checkpoints of this model make vectors. Half of those that are not cut for ranks
    are encoders, whose prompts run in one piece."""
    encodes = spec.tensor_parallel_size == 1 and chance.random() < 0.5
    pooling: Pooling = "cls" if encodes else "last"
    types = 2 if encodes else 0
    models = dict(cluster.models)
    for path, config in cluster.models.items():
        if path.startswith(spec.path):
            models[path] = replace(config, encodes=encodes, token_types=types, pooling=pooling)
    rows = max(cluster.worker.max_num_batched_tokens, LONGEST_PROMPT if encodes else 0)
    return replace(cluster, models=models, worker=replace(cluster.worker, max_num_batched_tokens=rows))


def asking_for_vectors(asks: Sequence[SeedAsk], models: Collection[str]) -> list[SeedAsk]:
    """The same requests, where those to these models ask for vectors."""
    return [
        replace(ask, ask=replace(ask.ask, max_tokens=1), wishes=Wishes(pools=True, priority=ask.wishes.priority))
        if ask.model in models
        else ask
        for ask in asks
    ]
