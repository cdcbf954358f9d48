"""Runs one scenario under virtual time, and keeps what a comparison needs of it."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from livescale.load.bench.systems.scenario import CONFIG, NAME, Scenario
from livescale.load.records import RequestRecord, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.start import made_up_asks, quiet, rare_collections, register, until
from livescale.load.simulate.usage import UsageWatch
from livescale.load.workers_in_use import Steps
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import SNAPSHOT

LONGEST_SECONDS = 7200.0  # of virtual time; a system that has not answered everything by then never will
START_SECONDS = 600.0
TELL_SECONDS = 5.0
Tell = Callable[[float], None]


class AnsweredRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request: when it was due in seconds of the window, seconds to its first token, and each gap after it."""

    due: float
    prompt_tokens: int
    ttft: float
    gaps: list[float]

    @property
    def mean_gap(self) -> float:
        return sum(self.gaps) / len(self.gaps) if self.gaps else 0.0


class SystemRun(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a scenario. Times count from the start of the window.

    `requests` are those that count and were answered; `faults` says what was wrong with others. `workers` that are in
    use, and `cached` bytes in host memory, are from those times on; `network` has bytes by second. Bytes are as those
    of the real model.
    """

    system: str
    seed: int
    digest: str
    seconds: float
    warm_up: float
    requests: list[AnsweredRequest]
    faults: list[str]
    workers: Steps
    cached: Steps
    network: list[tuple[float, float]]
    used_seconds: float
    cpu_seconds: float


def play(scenario: Scenario, tell: Tell = lambda at: None) -> SystemRun:
    """Run it in this process. `tell` hears every few seconds how far it is."""
    with quiet(), rare_collections():
        return virtual_time.run(_play(scenario, tell), limit_seconds=LONGEST_SECONDS)


async def _play(scenario: Scenario, tell: Tell) -> SystemRun:
    loop = asyncio.get_running_loop()
    async with virtual_cluster(scenario.cluster()) as made:
        watch, cpu = UsageWatch(made.broker), time.process_time()
        await _start(made, scenario)
        begun = loop.time()
        telling = asyncio.create_task(_progress(tell, begun))
        records = await replay(made.gateway, NAME, made_up_asks(scenario.arrivals, CONFIG.vocab_size, scenario.seed))
        telling.cancel()
        await asyncio.sleep(max(0.0, begun + scenario.seconds - loop.time()))
        good, faults = _split(records, scenario)
        scale = scenario.scale
        return SystemRun(
            system=scenario.system,
            seed=scenario.seed,
            digest=scenario.digest(),
            seconds=scenario.seconds,
            warm_up=scenario.warm_up,
            requests=good,
            faults=faults,
            workers=since(watch.workers, begun),
            cached=[(at, held * scale) for at, held in since(watch.cached, begun)],
            network=[
                (at - begun, sent * scale) for at, sent in sorted(made.links.flows.network_bytes.items()) if at >= begun
            ],
            used_seconds=watch.used_seconds(begun + scenario.warm_up, begun + scenario.seconds),
            cpu_seconds=time.process_time() - cpu,
        )


async def _start(made: VirtualCluster, scenario: Scenario) -> None:
    """Register the model, and wait for its first instances, and for the copies that hosts keep from the start."""
    spec = scenario.spec()
    await register(made, spec)

    async def there() -> bool:
        snapshot = await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)
        serving = sum(worker.state == "serving" for worker in snapshot.workers)
        copies = sum(one.version != "" and one.is_whole for host in snapshot.hosts for one in host.holdings)
        everywhere = scenario.values.get("host_cache") == "all"
        return serving >= spec.min_instances and (not everywhere or copies == len(snapshot.hosts))

    await until(there, START_SECONDS, every=0.1)


async def _progress(tell: Tell, begun: float) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        tell(asyncio.get_running_loop().time() - begun)


def _split(records: Sequence[RequestRecord], scenario: Scenario) -> tuple[list[AnsweredRequest], list[str]]:
    good, faults = list[AnsweredRequest](), list[str]()
    for record in records:
        due = scenario.arrivals[record.index].at
        fault = find_fault(record)
        if fault is not None:
            faults.append(f"{record.id}: {fault}")
        elif due >= scenario.warm_up and record.ttft is not None:
            good.append(AnsweredRequest(due, record.prompt_tokens, record.ttft, record.gaps))
    return good, faults


def since(steps: Steps, begun: float) -> Steps:
    """The steps from the start of the window on; what was before counts from its start."""
    before = [value for at, value in steps if at <= begun]
    return [(0.0, before[-1] if before else 0.0), *((at - begun, value) for at, value in steps if at > begun)]
