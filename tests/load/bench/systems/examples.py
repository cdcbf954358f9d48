"""Small scenarios, and runs that were made up."""

from msgspec.structs import replace

from livescale.load.bench.systems.play import AnsweredRequest, SystemRun
from livescale.load.bench.systems.scenario import Scenario, with_workers
from livescale.load.trace import LoadPhase, RequestShape, arrivals_in
from livescale.services.cli.systems import find_system
from livescale.shared.topology.file import find_topology

SECONDS = 3.0


def scenario(name: str, *, workers: int = 4, seed: int = 0, rate: float = 8.0, **values: object) -> Scenario:
    """A few seconds of requests, with other settings than the system has."""
    system = find_system(name)
    return Scenario(
        system=name,
        values={**system.values(), **values},
        simulated=system.simulated,
        topology=with_workers(find_topology("cluster-b"), workers),
        engine_profile="llama3-8b-a100",
        parameters_gb=16.06,
        kv_tokens=100_000,
        arrivals=arrivals_in([LoadPhase("all", SECONDS, rate)], RequestShape(800, 6), 1),
        seconds=SECONDS,
        warm_up=0.5,
        seed=seed,
    )


def run(system: str, *, ttft: float = 0.1, gap: float = 0.02, used: float = 10.0, seed: int = 0) -> SystemRun:
    """A run with ten requests that all took the same."""
    return SystemRun(
        system=system,
        seed=seed,
        digest=f"{system}-{seed}",
        seconds=20.0,
        warm_up=0.0,
        requests=[AnsweredRequest(float(at), 100, ttft, [3 * gap, gap, gap]) for at in range(10)],
        faults=[],
        workers=[(0.0, 1.0), (5.0, 2.0)],
        cached=[(0.0, 16e9)],
        network=[(1.0, 2e9), (2.0, 1e9)],
        used_seconds=used,
        cpu_seconds=1.0,
    )


def faulty(one: SystemRun, count: int) -> SystemRun:
    """The run with so many requests that were not answered."""
    return replace(one, requests=one.requests[count:], faults=["lost"] * count)
