"""Small clusters to simulate, a model for them, and what to do with both."""

from random import Random

import msgspec
from msgspec.structs import replace

from livescale.load.records import Ask
from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import flat_topology, register, until, workers_in
from livescale.services.planner.settings import PlannerSettings
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.requests import Sampling, Submit
from tests.worker.engine.made_up import made_up_tokens

PATH = "/models/m"
VOCABULARY = 4_099
# Beside its parameters as fast as 80 Gbps would be for the 8B model, whose latencies it has.
NIC = 4e6
CONFIG = ModelConfig(
    family="llama",
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=512,
    num_hidden_layers=12,
    num_attention_heads=8,
    num_key_value_heads=1,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=4_096,
)


def settings(hosts: int, seed: int = 0) -> VirtualClusterSettings:
    return VirtualClusterSettings(
        topology=flat_topology(hosts, NIC),
        models={PATH: CONFIG},
        seed=seed,
        planner=PlannerSettings(live="zigzag"),
        worker=WorkerSettings(arena_bytes=8 * MIB, kv_bytes=32 * MIB),
    )


def asks(count: int, rate: float, prompt: int, tokens: int) -> list[Ask]:
    """Requests with prompts of about this many tokens; every other one is sampled."""
    chance = Random(count)
    return [
        Ask(
            number,
            number / rate,
            [chance.randrange(VOCABULARY) for _ in range(chance.randrange(prompt // 2, prompt * 3 // 2))],
            tokens,
            0.8 * (number % 2),
            number,
        )
        for number in range(count)
    ]


def model(name: str = "m", path: str = PATH, **spec: int) -> ModelSpec:
    return replace(ModelSpec(name=name, path=path, downscale_delay_s=600.0), **spec)


async def until_serving(cluster: VirtualCluster, count: int) -> None:
    async def holds() -> bool:
        return len(await workers_in(cluster, "serving")) >= count

    await until(holds)


async def registered(cluster: VirtualCluster, **spec: int) -> None:
    """Register the model, and wait for its first instance."""
    await register(cluster, model("m", PATH, **spec))
    await until_serving(cluster, 1)


def undisturbed(ask: Ask, version: str) -> list[int]:
    """The tokens of a request that nothing happens to."""
    sampling = Sampling(temperature=ask.temperature, seed=ask.seed)
    alone = Submit(
        request_id="alone",
        model="m",
        gateway="none",
        prompt=ask.prompt,
        sampling=sampling,
        max_tokens=ask.max_tokens,
        deadline=0.0,
    )
    return made_up_tokens(version, VOCABULARY, alone)


def decode_leases(cluster: VirtualCluster) -> dict[str, list[tuple[str, int]]]:
    """The changes of each process's lease so far, each with the second of it."""
    found: dict[str, list[tuple[str, int]]] = {}
    for event in cluster.log.of("evt.lease"):
        change = msgspec.json.decode(event.data, type=LeaseChanged)
        found.setdefault(change.id, []).append((change.state, round(event.at)))
    return found
