"""A small random system from a seed: its machines, models, settings and requests. The same seed makes the same one."""

from collections.abc import Sequence
from random import Random
from typing import get_args

import msgspec
from msgspec.structs import replace

from livescale.load.records import Ask
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.seeds.history import SeedFault, random_faults
from livescale.load.simulate.seeds.stories import Cast, random_story, up_and_down
from livescale.services.host.settings import HostSettings
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.model_spec import Disaggregation, ModelSpec, ScalingBounds
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.runtime.settings import HostCacheName
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost

MEMORY = 1 << 36
VOCABULARY = 509
PATIENCE_SECONDS = 300.0  # of most clients, who wait longer than any system may take to recover
LOAD_PATIENCE_SECONDS = 8.0  # of the planner: longer than any fault
LOAD_SECONDS = 6.0  # in which requests are sent
FEW_FAULTS = 2  # beside a story
BOUNDS = ScalingBounds(decode_lo=0.1, decode_hi=0.25)  # a few requests at an instance ask for another
LIVE_MODES: Sequence[LiveMode] = get_args(LiveMode)
HOST_CACHES: Sequence[HostCacheName] = ("pool", "pool", "ttl", "all")


class SeedAsk(msgspec.Struct, frozen=True):
    """A request for `model`. Its first `shared` prompt tokens are those of others, too.

    Its client waits for `patience` seconds, and leaves after `leaves` seconds, None being never.
    """

    model: str
    ask: Ask
    shared: int = 0
    patience: float = PATIENCE_SECONDS
    leaves: float | None = None


class SeedSystem(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for. Where `early`, requests and faults begin as soon as the models are registered, else once
    all serves that is to serve without load."""

    seed: int
    cluster: VirtualClusterSettings
    specs: list[ModelSpec]
    asks: list[SeedAsk]
    faults: list[SeedFault]
    early: bool

    def describe(self) -> str:
        """Say in a line what workers, hosts, models and settings the system has."""
        cluster = self.cluster
        gpus = "+".join(str(len(host.gpus)) for host in cluster.topology.hosts)
        models = ", ".join(
            f"{spec.name} ({spec.min_instances}-{spec.max_instances} of {spec.tensor_parallel_size})"
            for spec in self.specs
        )
        return (
            f"{gpus} workers, live {cluster.planner.live}, disaggregation {cluster.planner.disaggregation}, "
            f"models {models}, {len(self.asks)} requests, {len(self.faults)} faults"
        )


def random_system(seed: int) -> SeedSystem:
    """Draw the system of a seed: topology, models, requests, faults."""
    chance = Random(f"system {seed}")
    topology = random_topology(chance)
    workers = len(topology.gpus)
    specs = random_models(chance, workers)
    routers = chance.choice((1, 2))
    processes = [f"{service}-0" for service in ("registry", "planner", "monitor", "gateway")]
    processes += [f"router-{number}" for number in range(routers)]
    processes += [f"host-{number}" for number in range(len(topology.hosts))]
    processes += [f"worker-{number}" for number in range(workers)]
    configs = {spec.path: random_config(chance) for spec in specs}
    asks = random_asks(chance, [spec.name for spec in specs])
    early = chance.random() < 0.25
    busy_at = [0.0] if early else [ask.ask.at for ask in asks]
    models = [spec.name for spec in specs]
    faults = random_faults(chance, processes, models, busy_at)
    return SeedSystem(
        seed=seed,
        cluster=replace(random_settings(chance, seed, topology, configs), routers=routers),
        specs=specs,
        asks=asks,
        early=early,
        faults=with_story(seed, Cast(Random(f"story {seed}"), processes, models), faults, busy_at),
    )


def with_story(seed: int, cast: Cast, faults: list[SeedFault], busy_at: Sequence[float]) -> list[SeedFault]:
    """The faults of a seed; of every other one a few of them, and a story. Where nothing goes wrong, nothing does."""
    if seed % 2:
        return faults
    at = cast.chance.choice(busy_at) + cast.chance.uniform(0.0, 1.0)
    if all(fault.is_command for fault in faults):
        return faults + up_and_down(cast, at)
    # What may excuse a failure hides it, too: every other story is told alone.
    return faults[: cast.chance.choice((0, FEW_FAULTS))] + random_story(cast, at)


def random_topology(chance: Random) -> Topology:
    """One host or two, with up to eight GPUs between them; a model takes from a tenth of a second to a few to move."""
    hosts = chance.choice((1, 2, 2))
    rate = 10 ** chance.uniform(5.4, 6.4)
    disk = rate * chance.choice((0.5, 1.0, 2.0))
    bandwidth = rate * 8 if chance.random() < 0.3 else 0.0  # within a scale-up domain, where there is one

    def host(number: int) -> TopologyHost:
        gpus = [
            Gpu(
                id=f"h{number}/{gpu}",
                domain=f"d{number}" if bandwidth else f"d{number}.{gpu}",
                memory_bytes=MEMORY,
                nic_in=rate,
                nic_out=rate,
                host_link=rate * 2,
            )
            for gpu in range(chance.choice((2, 3, 4, 4) if hosts == 1 else (1, 2, 3, 4, 4)))
        ]
        return TopologyHost(
            id=f"h{number}", leaf="leaf0", memory_bytes=MEMORY, nic_in=rate, nic_out=rate, disk=disk, gpus=gpus
        )

    made = [host(number) for number in range(hosts)]
    domains = dict.fromkeys(gpu.domain for one in made for gpu in one.gpus)
    return Topology(
        name="random",
        leaves=[Leaf(id="leaf0")],
        domains=[Domain(id=id, bandwidth=bandwidth) for id in domains],
        hosts=made,
    )


def random_models(chance: Random, workers: int) -> list[ModelSpec]:
    """One model or two. There are workers enough for the fewest instances of each, and one more."""
    specs: list[ModelSpec] = []
    for name in ("m", "n")[: chance.choice((1, 1, 2))]:
        ranks = 2 if workers >= 4 and chance.random() < 0.25 else 1
        fewest = chance.choice((0, 1, 1)) if name == "n" else 1
        specs.append(
            ModelSpec(
                name=name,
                path=f"/models/{name}",
                min_instances=fewest,
                max_instances=chance.randint(min(2, workers // ranks), workers // ranks),
                bounds=BOUNDS,
                downscale_delay_s=chance.uniform(0.5, 3.0),
                downscale_to_zero_delay_s=chance.uniform(1.0, 3.0),
                tensor_parallel_size=ranks,
            )
        )
    return specs


def random_config(chance: Random) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=chance.randint(2, 8),
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=2_048,
    )


def random_settings(
    chance: Random, seed: int, topology: Topology, configs: dict[str, ModelConfig]
) -> VirtualClusterSettings:
    disaggregation: Disaggregation = chance.choice(("off", "off", "on", "on", "auto"))
    share = 0.5 if disaggregation == "on" and chance.random() < 0.5 else None
    return VirtualClusterSettings(
        topology=topology,
        models=configs,
        seed=seed,
        wire=False,
        registry=RegistrySettings(host_cache=chance.choice(HOST_CACHES), host_cache_ttl=chance.uniform(2.0, 10.0)),
        router=RouterSettings(disaggregation=disaggregation, ttft_slo=chance.uniform(0.1, 1.0)),
        planner=PlannerSettings(
            live=chance.choice(LIVE_MODES),
            live_every_hop=chance.random() < 0.3,
            live_when=chance.choice(("always", "always", "needed")),
            disaggregation=disaggregation,
            prefill_share=share,
            decode_scaling=chance.choice(("mutate", "load")),
            patience_seconds=LOAD_PATIENCE_SECONDS,
        ),
        monitor=MonitorSettings(disaggregation=disaggregation, prefill_share=share),
        host=HostSettings(pack=False),
        worker=WorkerSettings(
            arena_bytes=2 * MIB,
            kv_bytes=chance.choice((2 * MIB, 2 * MIB, 32 * MIB)),
            host_kv_bytes=chance.choice((0, 0, MIB)),
            max_num_seqs=chance.choice((4, 16, 16)),
            engine_speed=chance.choice((0.5, 1.0, 1.0, 4.0)),
            enable_prefix_caching=chance.random() < 0.7,
            switch_kv=chance.choice(("auto", "move", "recompute")),
            kv_transfer=chance.choice(("by-layer", "by-request")),
        ),
    )


def random_asks(chance: Random, models: Sequence[str]) -> list[SeedAsk]:
    """Requests in bursts: of each burst many are under way at once."""
    common = chance.choices(range(VOCABULARY), k=200)
    asks: list[SeedAsk] = []
    for _ in range(chance.randint(1, 4)):
        begins, model = chance.uniform(0.0, LOAD_SECONDS), chance.choice(models)
        longest = chance.choice((40, 200, 600))
        for _ in range(chance.choice((1, 4, 8, 16, 24))):
            begins += chance.uniform(0.0, 0.1)
            asks.append(random_ask(chance, len(asks), begins, model, longest, common))
    return asks


def random_ask(chance: Random, index: int, at: float, model: str, longest: int, common: list[int]) -> SeedAsk:
    own = chance.choices(range(VOCABULARY), k=chance.randint(4, longest))
    shared = chance.choice((0, 0, 64, 200))
    ask = Ask(index, at, common[:shared] + own, chance.choice((1, 2, 8, 30, 60, 120)), 0.8 * (index % 2), index)
    kind = chance.random()
    if kind < 0.04:
        return SeedAsk(model, ask, shared, patience=chance.uniform(0.2, 4.0))
    if kind < 0.08:
        return SeedAsk(model, ask, shared, leaves=chance.uniform(0.1, 2.0))
    return SeedAsk(model, ask, shared)


def kept(system: SeedSystem, asks: Sequence[int], faults: Sequence[int]) -> SeedSystem:
    """The same system with these of its requests and faults only, by their places."""
    return replace(
        system, asks=[system.asks[place] for place in asks], faults=[system.faults[place] for place in faults]
    )
