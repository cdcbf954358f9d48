"""What every run of a virtual cluster does before requests come: it makes a topology, registers models, and quietens
logs."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import structlog

from livescale.load.records import Ask
from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.trace import Arrival, Trace
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AskSnapshot, Register
from livescale.shared.subjects import REGISTER, SNAPSHOT
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost

MEMORY = 1 << 36
COLLECT_AFTER = (100_000, 10, 10)  # objects of each generation of the garbage collector


@contextmanager
def quiet() -> Iterator[None]:
    """Log errors only, as simulated processes tell of more than they do."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage less often, as a large cluster has millions of objects, and hardly one of them is garbage."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def flat_topology(hosts: int, rate: float) -> Topology:
    """Hosts with a GPU each, on one leaf switch, whose links and disks carry `rate` bytes a second."""

    def host(number: int) -> TopologyHost:
        gpu = Gpu(
            id=f"h{number}/0", domain=f"d{number}", memory_bytes=MEMORY, nic_in=rate, nic_out=rate, host_link=rate
        )
        return TopologyHost(
            id=f"h{number}", leaf="leaf0", memory_bytes=MEMORY, nic_in=rate, nic_out=rate, disk=rate, gpus=[gpu]
        )

    return Topology(
        name="flat",
        leaves=[Leaf(id="leaf0")],
        domains=[Domain(id=f"d{number}") for number in range(hosts)],
        hosts=[host(number) for number in range(hosts)],
    )


def made_up_asks(trace: Trace, vocabulary: int, seed: int) -> list[Ask]:
    """The requests of a trace. Their prompts are made up of tokens below `vocabulary`, and share nothing."""
    chance = Random(seed)
    return [made_up_ask(number, one, vocabulary, chance) for number, one in enumerate(trace)]


def made_up_ask(number: int, arrival: Arrival, vocabulary: int, chance: Random) -> Ask:
    """The request of one arrival, with a prompt that is drawn now."""
    draw = chance.random
    drawn = np.array([draw() for _ in range(arrival.prompt_tokens)])
    prompt: list[int] = (drawn * vocabulary).astype(int).tolist()  # those of `Random.choices`, in a third of the time
    return Ask(number, arrival.at, prompt, arrival.output_tokens)


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 60.0, every: float = 0.02) -> None:
    """Ask every so many seconds whether it holds. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 what is waited for is others' to know
            await asyncio.sleep(every)


async def register(cluster: VirtualCluster, spec: ModelSpec) -> None:
    """Register a model as soon as a registry is there."""

    async def taken() -> bool:
        try:
            await cluster.operator.call(REGISTER, Register(spec=spec), timeout=5.0)
        except BusError:
            return False
        return True

    await until(taken)


async def workers_in(cluster: VirtualCluster, state: str) -> list[str]:
    """The workers in this state, as the registry has it, by name."""
    snapshot = await cluster.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)
    return sorted(worker.id for worker in snapshot.workers if worker.state == state)
