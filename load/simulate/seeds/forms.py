"""Other forms in which the models of a random system are registered while it runs."""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.seeds.history import SeedFault
from livescale.load.simulate.seeds.random_models import workers_of_others
from livescale.shared.messages.model_spec import ModelSpec

SHARE = 0.15  # of all seeds
MOST_CHANGES = 3
DTYPES = ("dtype=float32", "dtype=bfloat16")
LAYOUTS = ("layout=panels", "layout=plain")
KV_DTYPES = ("kv_cache_dtype=fp8", "kv_cache_dtype=auto")


def has_forms(seed: int) -> bool:
    """Whether models of the system of a seed get other forms."""
    return Random(f"forms {seed}").random() < SHARE


def random_forms(chance: Random, specs: Sequence[ModelSpec], workers: int, latest: float) -> list[SeedFault]:
    """Times at which one of these models gets another dtype, layout, number of ranks, or other keys and values.

    There are always workers enough for an instance of each, and one more.
    """
    changes, largest = list[SeedFault](), {spec.name: spec for spec in specs}  # of the forms that each has in turn
    for _ in range(chance.randint(1, MOST_CHANGES)):
        spec = largest[chance.choice(specs).name]
        free = workers - workers_of_others(list(largest.values()), spec)
        ranks = [count for count in (1, 2, 4) if free > count]
        other = chance.choice((*DTYPES, *LAYOUTS, *KV_DTYPES))
        if ranks and chance.random() < 0.5:
            count = chance.choice(ranks)
            largest[spec.name] = replace(spec, tensor_parallel_size=max(spec.tensor_parallel_size, count))
            other = f"tensor_parallel_size={count}"
        changes.append(SeedFault(chance.uniform(0.0, latest), "form", spec.name, other=other))
    return changes


def with_more_room(cluster: VirtualClusterSettings) -> VirtualClusterSettings:
    """The same cluster, whose workers have room for everything in float32, too."""
    worker = cluster.worker
    arena_bytes, adapter_bytes, kv_bytes = 2 * worker.arena_bytes, 2 * worker.adapter_bytes, 2 * worker.kv_bytes
    larger = replace(worker, arena_bytes=arena_bytes, adapter_bytes=adapter_bytes, kv_bytes=kv_bytes)
    return replace(cluster, worker=larger)
