"""A small random system from a seed: its machines, models, settings and requests. The same seed makes the same one."""

from collections.abc import Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.seeds.adapters import (
    has_adapters,
    random_adapters,
    random_changes,
    with_adapters,
    with_little_room,
)
from livescale.load.simulate.seeds.asks import LOAD_SECONDS, SeedAsk, crowd_asks, has_wishes, random_asks, with_wishes
from livescale.load.simulate.seeds.crowds import Crowd, crowd_faults, has_crowd
from livescale.load.simulate.seeds.forms import has_forms, random_forms, with_more_room
from livescale.load.simulate.seeds.gateways import count_gateways, random_ends
from livescale.load.simulate.seeds.history import SeedFault, random_faults
from livescale.load.simulate.seeds.random_cluster import (
    has_small_caches,
    random_settings,
    random_topology,
    unusual_settings,
    with_small_caches,
)
from livescale.load.simulate.seeds.random_models import (
    random_config,
    random_limits,
    random_models,
    random_removal,
    random_updates,
    with_more_ranks,
)
from livescale.load.simulate.seeds.stories import Cast, random_story, up_and_down
from livescale.load.simulate.seeds.vectors import asking_for_vectors, making_vectors, vector_models
from livescale.shared.messages.model_spec import ModelSpec

FEW_FAULTS = 2  # beside a story


class SeedSystem(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for. Where `early`, requests and faults begin as soon as the models are registered, else once
    all serves that is to serve without load."""

    seed: int
    cluster: VirtualClusterSettings
    specs: list[ModelSpec]
    adapters: list[ModelSpec] = []
    asks: list[SeedAsk]
    faults: list[SeedFault]
    early: bool

    @property
    def registered(self) -> list[ModelSpec]:
        """What operators register, in their order: an adapter comes after its model."""
        return [*self.specs, *self.adapters]

    def describe(self) -> str:
        """Say in a line what workers, hosts, models and settings the system has."""
        cluster = self.cluster
        gpus = "+".join(str(len(host.gpus)) for host in cluster.topology.hosts)
        models = ", ".join(
            f"{spec.name} ({spec.min_instances}-{spec.max_instances} of {spec.tensor_parallel_size})"
            for spec in self.specs
        )
        adapters = f"{len(self.adapters)} adapters, " if self.adapters else ""
        gateways = f"{cluster.gateways} gateways, " if cluster.gateways > 1 else ""
        return (
            f"{gpus} workers, {gateways}live {cluster.planner.live}, disaggregation {cluster.planner.disaggregation}, "
            f"models {models}, {adapters}{len(self.asks)} requests, {len(self.faults)} faults"
        )


def random_system(seed: int) -> SeedSystem:
    """Draw the system of a seed: topology, models, requests, faults."""
    chance = Random(f"system {seed}")
    topology = random_topology(chance)
    workers = len(topology.gpus)
    specs = with_more_ranks(Random(f"ranks of {seed}"), random_models(chance, workers), workers)
    routers = chance.choice((1, 2))
    processes = [f"{service}-0" for service in ("registry", "planner", "monitor", "gateway")]
    processes += [f"router-{number}" for number in range(routers)]
    gateways = count_gateways(seed)
    processes += [f"gateway-{number}" for number in range(1, gateways)]
    processes += [f"host-{number}" for number in range(len(topology.hosts))]
    processes += [f"worker-{number}" for number in range(workers)]
    configs = {spec.path: random_config(chance) for spec in specs}
    asks = random_asks(chance, [spec.name for spec in specs])
    early = chance.random() < 0.25
    busy_at = [0.0] if early else [ask.ask.at for ask in asks]
    models = [spec.name for spec in specs]
    faults = random_faults(chance, processes, models, busy_at)
    cluster = replace(random_settings(chance, seed, topology, configs), routers=routers, gateways=gateways)
    if has_crowd(seed):
        crowd = Crowd(Random(f"crowd of {seed}"), processes, specs)
        asks, faults = crowd_asks(crowd.chance, models), crowd_faults(crowd)
    else:
        faults = with_story(seed, Cast(Random(f"story {seed}"), processes, models), faults, busy_at)
    if has_wishes(seed):
        wishes = Random(f"wishes of {seed}")
        asks, cluster = with_wishes(wishes, asks), unusual_settings(wishes, cluster)
        updates, paths = random_updates(wishes, specs, LOAD_SECONDS)
        others = {path: random_config(wishes) for path in paths}
        changes = updates or random_removal(Random(f"removal of {seed}"), specs, LOAD_SECONDS)
        limits = random_limits(Random(f"limits of {seed}"), specs, workers, LOAD_SECONDS)
        faults, cluster = [*faults, *changes, *limits], replace(cluster, models={**cluster.models, **others})
    return with_rare_kinds(SeedSystem(seed=seed, cluster=cluster, specs=specs, asks=asks, early=early, faults=faults))


def with_rare_kinds(system: SeedSystem) -> SeedSystem:
    """The same system, in which some seeds have gateways that end, a model that makes vectors, adapters, models that
    change their form, or small host caches."""
    seed, cluster, asks, faults = system.seed, system.cluster, system.asks, system.faults
    vectors, adapters = vector_models(seed, system.specs), list[ModelSpec]()
    faults = [*faults, *random_ends(seed, cluster.gateways, LOAD_SECONDS)]
    for spec in system.specs:
        if spec.name in vectors:
            asks = asking_for_vectors(asks, vectors)
            cluster = making_vectors(Random(f"vectors of {seed}"), cluster, spec)
    tellers = [spec for spec in system.specs if spec.name not in vectors]
    if tellers and has_adapters(seed):
        drawn = Random(f"adapters of {seed}")
        adapters = random_adapters(drawn, tellers)
        asks = with_adapters(drawn, asks, adapters)
        faults = [*faults, *random_changes(drawn, adapters, LOAD_SECONDS)]
        cluster = replace(cluster, worker=with_little_room(drawn, cluster.worker, cluster.models))
    if not vectors and has_forms(seed):
        workers = len(cluster.topology.gpus)
        faults = [*faults, *random_forms(Random(f"forms of {seed}"), system.specs, workers, LOAD_SECONDS)]
        cluster = with_more_room(cluster)
    elif has_small_caches(seed, cluster):
        cluster = with_small_caches(Random(f"caches of {seed}"), cluster)
    return replace(system, cluster=cluster, adapters=adapters, asks=asks, faults=faults)


def with_story(seed: int, cast: Cast, faults: list[SeedFault], busy_at: Sequence[float]) -> list[SeedFault]:
    """The faults of a seed; of every other one a few of them, and a story. Where nothing goes wrong, nothing does."""
    if seed % 2:
        return faults
    at = cast.chance.choice(busy_at) + cast.chance.uniform(0.0, 1.0)
    if all(fault.is_command for fault in faults):
        return faults + up_and_down(cast, at)
    # What may excuse a failure hides it, too: every other story is told alone.
    return faults[: cast.chance.choice((0, FEW_FAULTS))] + random_story(cast, at)


def kept(system: SeedSystem, asks: Sequence[int], faults: Sequence[int]) -> SeedSystem:
    """The same system with these of its requests and faults only, by their places."""
    return replace(
        system, asks=[system.asks[place] for place in asks], faults=[system.faults[place] for place in faults]
    )
