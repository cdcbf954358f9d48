"""Small clusters to simulate, a model for them, and what to do with both."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random

import structlog
from msgspec.structs import replace

from livescale.load.records import Ask
from livescale.load.simulate.cluster import VirtualCluster, VirtualClusterSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.parameters import ModelConfig, ModelSpec
from livescale.shared.messages.registry import AskSnapshot, Register
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.subjects import REGISTER, SNAPSHOT
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost
from tests.worker.engine.made_up import made_up_tokens

PATH = "/models/m"
VOCABULARY = 4_099
# Beside its parameters as fast as 80 Gbps would be for the 8B model, whose latencies it has.
NIC = 4e6
MEMORY = 1 << 36
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


def gpu(id: str, domain: str, nic: float) -> Gpu:
    return Gpu(id=id, domain=domain, memory_bytes=MEMORY, nic_in=nic, nic_out=nic, host_link=nic)


def topology(hosts: int, nic: float = NIC) -> Topology:
    """Hosts with a GPU each, on one leaf switch."""
    return Topology(
        name="small",
        leaves=[Leaf(id="leaf0")],
        domains=[Domain(id=f"d{number}") for number in range(hosts)],
        hosts=[
            TopologyHost(
                id=f"h{number}",
                leaf="leaf0",
                memory_bytes=MEMORY,
                nic_in=nic,
                nic_out=nic,
                disk=nic,
                gpus=[
                    Gpu(
                        id=f"h{number}/0",
                        domain=f"d{number}",
                        memory_bytes=MEMORY,
                        nic_in=nic,
                        nic_out=nic,
                        host_link=nic,
                    )
                ],
            )
            for number in range(hosts)
        ],
    )


def settings(hosts: int, seed: int = 0) -> VirtualClusterSettings:
    return VirtualClusterSettings(
        topology=topology(hosts),
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


@contextmanager
def quiet() -> Iterator[None]:
    """Log warnings only, as thousands of steps take longer to tell of than to run."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.reset_defaults()


async def reports(cluster: VirtualCluster, state: str) -> list[str]:
    """The workers in this state, as the registry has it."""
    workers: list[WorkerReport] = (await cluster.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)).workers
    return [worker.id for worker in workers if worker.state == state]


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 what is waited for is others' to know
            await asyncio.sleep(0.02)


async def until_serving(cluster: VirtualCluster, count: int) -> None:
    async def holds() -> bool:
        return len(await reports(cluster, "serving")) >= count

    await until(holds)


async def register(cluster: VirtualCluster, name: str = "m", path: str = PATH, **spec: int) -> None:
    """Register a model as soon as a registry is there."""
    model = replace(ModelSpec(name=name, path=path, downscale_delay_s=600.0), **spec)

    async def taken() -> bool:
        try:
            await cluster.operator.call(REGISTER, Register(spec=model), timeout=5.0)
        except BusError:
            return False
        return True

    await until(taken)


async def registered(cluster: VirtualCluster, **spec: int) -> None:
    """Register the model, and wait for its first instance."""
    await register(cluster, "m", PATH, **spec)
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
