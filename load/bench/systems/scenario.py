"""One run of the comparison: a system, the arrivals, and the cluster that it is given.

The model is a small one whose parameters, KV and activations weigh against each other about as an 8B model's do. Links
and disks are slower than those of the topology by as much as the model is smaller, so every load takes its real time.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib import resources
from pathlib import Path

import msgspec
from msgspec.structs import replace

from livescale.load.simulate.cluster_of_stack import control_settings
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.trace import Trace
from livescale.services.cli.options import PASSED_ON, UpOptions, gather
from livescale.services.supervisor.commands import worker_flags
from livescale.services.supervisor.resources import token_bytes
from livescale.services.supervisor.settings import StackSettings
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import DType, ModelConfig
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.topology.topology import Topology

NAME, PATH = "m", "/models/m"
DTYPE: DType = "bfloat16"
CONTEXT = 4_096
CONFIG = ModelConfig(
    family="llama",
    vocab_size=4_099,
    hidden_size=8,
    intermediate_size=20_000,
    num_hidden_layers=16,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=2,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=CONTEXT,
)
BYTES = sum(layout.size_bytes for layout in block_layouts(CONFIG, DTYPE))
KV_TOKEN_BYTES = token_bytes(CONFIG, 1, DTYPE)
NO_LIMIT = 1e14  # bytes a second: a load takes no time but that of its messages
# Batches as large as engines on GPUs make them.
BATCHES = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "block_size": 64}
# The SLO is five times the mean between tokens. A closer pace than this slows prompts down by a quarter where decodes
# run beside them, for a regularity that is not asked for.
TBT_RATIO = 3.0
# What a result depends on: all services, and what runs them here.
CODE = ("services", "shared", "load/simulate", "load/bench/systems/scenario.py", "load/bench/systems/play.py")


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `values` are the system's settings by field name; a `simulated` one loads in no time.

    `topology` has as many GPUs as there are workers, and real rates. Arrivals before `warm_up` do not count; the run is
    measured until second `seconds`.
    """

    system: str
    values: Mapping[str, object]
    simulated: bool
    topology: Topology
    engine_profile: str
    parameters_gb: float
    kv_tokens: int
    arrivals: Trace
    seconds: float
    warm_up: float
    seed: int

    @property
    def scale(self) -> float:
        """How many times as large the real model's parameters are."""
        return self.parameters_gb * 1e9 / BYTES

    def digest(self) -> str:
        """Names the run by all that it depends on, the code included."""
        told = msgspec.json.encode(self, order="deterministic")
        return blake2b(code_digest().encode() + told, digest_size=16).hexdigest()

    def stack(self) -> StackSettings:
        """The system's settings, as `livescale up` would have them."""
        common = {
            "workers": len(self.topology.gpus),
            "arena_bytes": 2 * BYTES,
            "kv_bytes": self.kv_tokens * KV_TOKEN_BYTES,
            "engine": "modelled",
            "engine_profile": self.engine_profile,
            "tbt_ratio": TBT_RATIO,
        }
        return gather(UpOptions(**{**BATCHES, **common, **self.values}), StackSettings, PASSED_ON)

    def cluster(self) -> VirtualClusterSettings:
        """Settings of the virtual cluster that the system runs on, with the flags that real processes would have."""
        stack = self.stack()
        worker = {**worker_flags(stack), "engine_profile": self.engine_profile}
        return VirtualClusterSettings(
            topology=slowed(self.topology, None if self.simulated else self.scale),
            models={PATH: CONFIG},
            seed=self.seed,
            worker=WorkerSettings(**worker),  # type: ignore[arg-type]
            **control_settings(stack),
        )

    def spec(self) -> ModelSpec:
        """The model as it is registered, with the bounds that the system gives it."""
        registry = self.cluster().registry
        return ModelSpec(
            name=NAME,
            path=PATH,
            dtype=DTYPE,
            min_instances=registry.min_instances,
            max_instances=registry.max_instances,
            downscale_delay_s=registry.downscale_delay_s,
        )


def slowed(topology: Topology, scale: float | None) -> Topology:
    """The topology with all rates divided by `scale`, or with links and disks that take no time if it is None."""

    def rate(real: float) -> float:
        return real and (NO_LIMIT if scale is None else real / scale)

    hosts = [
        replace(
            host,
            nic_in=rate(host.nic_in),
            nic_out=rate(host.nic_out),
            disk=rate(host.disk),
            gpus=[
                replace(gpu, nic_in=rate(gpu.nic_in), nic_out=rate(gpu.nic_out), host_link=rate(gpu.host_link))
                for gpu in host.gpus
            ],
        )
        for host in topology.hosts
    ]
    domains = [replace(domain, bandwidth=rate(domain.bandwidth)) for domain in topology.domains]
    leaves = [
        replace(leaf, uplink_in=rate(leaf.uplink_in), uplink_out=rate(leaf.uplink_out)) for leaf in topology.leaves
    ]
    return replace(topology, hosts=hosts, domains=domains, leaves=leaves)


def with_workers(topology: Topology, workers: int) -> Topology:
    """The topology with this many GPUs, as evenly over its hosts as they allow. Raises ValueError."""
    if workers > len(topology.gpus):
        raise ValueError(f"workers is {workers}, and {topology.name} has {len(topology.gpus)} GPUs: give fewer")
    counts = [0] * len(topology.hosts)
    while sum(counts) < workers:
        room = [number for number, host in enumerate(topology.hosts) if counts[number] < len(host.gpus)]
        counts[min(room, key=lambda number: counts[number])] += 1
    hosts = [replace(host, gpus=host.gpus[:count]) for host, count in zip(topology.hosts, counts, strict=True) if count]
    used = {gpu.domain for host in hosts for gpu in host.gpus}
    return replace(topology, hosts=hosts, domains=[domain for domain in topology.domains if domain.id in used])


@cache
def code_digest() -> str:
    """A digest of all code that a run depends on."""
    root, digest = Path(str(resources.files("livescale"))), blake2b(digest_size=16)
    for part in CODE:
        files = [root / part] if part.endswith(".py") else sorted((root / part).rglob("*"))
        for file in files:
            if file.suffix in (".py", ".yaml"):
                digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
