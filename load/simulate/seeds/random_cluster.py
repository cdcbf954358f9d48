"""A small random cluster: its machines, models and settings."""

from collections.abc import Sequence
from random import Random
from typing import get_args

from msgspec.structs import replace

from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.services.host.settings import HostSettings
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.runtime.settings import HostCacheName, PolicyName
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost

MEMORY = 1 << 36
LOAD_PATIENCE_SECONDS = 8.0  # of the planner: longer than any fault
LIVE_MODES: Sequence[LiveMode] = get_args(LiveMode)
POLICIES: Sequence[PolicyName] = get_args(get_args(PolicyName)[0])
BINOMIAL: Sequence[PolicyName] = ("auto", "binomial")
HOSTS = 2  # at most
SMALL_CACHES_SHARE = 0.25  # of systems with as many
HOST_CACHES: Sequence[HostCacheName] = ("pool", "pool", "ttl", "all")


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


def has_small_caches(seed: int, settings: VirtualClusterSettings) -> bool:
    """Whether hosts of the system of a seed have room for little more than one model."""
    return len(settings.topology.hosts) == HOSTS and Random(f"caches {seed}").random() < SMALL_CACHES_SHARE


def with_small_caches(chance: Random, settings: VirtualClusterSettings) -> VirtualClusterSettings:
    """The same cluster, with a host cache for the largest checkpoint and a part of another."""
    sizes = [sum(one.size_bytes for one in block_layouts(config, "bfloat16")) for config in settings.models.values()]
    size = int(max(sizes) * chance.choice((1.05, 1.3, 1.6)))
    return replace(settings, host=replace(settings.host, cache_bytes=size))


def unusual_settings(chance: Random, settings: VirtualClusterSettings) -> VirtualClusterSettings:
    """The same settings, but for some that few operators change."""
    worker, planner = settings.worker, settings.planner
    policies = BINOMIAL if planner.live == "pipeline" else POLICIES
    tokens = chance.choice((PREFILL_CHUNK + worker.max_num_seqs, 256, 512, 2048))
    return replace(
        settings,
        registry=replace(settings.registry, host_cache=chance.choice(HOST_CACHES)),
        router=replace(
            settings.router, routing=chance.choice(("least-loaded", "round-robin")), tbt_slo=chance.choice((0.02, 0.15))
        ),
        planner=replace(planner, plan_policy=chance.choice(policies), group_setup_s=chance.uniform(0.0, 0.5)),
        monitor=replace(settings.monitor, pre_scale_decode=chance.random() < 0.5),
        worker=replace(
            worker,
            max_num_batched_tokens=tokens,
            max_num_waiting=chance.choice((0, 4, 64)),
            tbt_ratio=chance.choice((1.0, 1.85, 8.0)),
            block_size=chance.choice((16, 32, 64)),
            context_share=chance.choice((0.0, 0.5, 1.0)),
            context_seconds=chance.choice((0.5, 1800.0)),
            keep_parameters=chance.random() < 0.5,
        ),
    )
