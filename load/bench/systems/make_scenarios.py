"""From the options of `livescale bench systems` to the scenarios that it runs."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from livescale.load.bench.systems.scenario import CONTEXT, Scenario, with_workers
from livescale.load.bench.systems.settings import SystemsBenchSettings
from livescale.load.trace import Trace, TraceError, Window, fit, parse_window, replay
from livescale.load.trace import window as cut
from livescale.load.trace_files import read_trace
from livescale.services.cli.systems import NamedSystem, find_system
from livescale.shared.model.latency import Work, find_latency
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Topology

BUSY_SHARE = 0.5  # of what the system with all workers can serve, by default
FULL = "distserve-full"
ROUNDS = 4  # in which the rate is found: with another one, other lengths are replayed
CHUNK = 2048  # tokens of a prompt that are computed in one step


def make_scenarios(settings: SystemsBenchSettings) -> tuple[float, list[Scenario]]:
    """The factor of the trace's rate, and a scenario for each seed and system. Raises ValueError, which names the
    option."""
    named = dict(find_systems(settings.systems))
    topology = find_cluster(settings)
    trace, part = read_part(settings)
    seconds = part.seconds or trace[-1].at - part.start
    if settings.warm_up >= seconds:
        raise ValueError(f"--warm-up is {settings.warm_up:g} s, and the window has {seconds:g}: nothing would count")
    rate_scale = settings.rate_scale or find_rate_scale(trace, part, seconds, settings)
    scenarios = [
        Scenario(
            system=name,
            values=system.values(),
            simulated=system.simulated,
            topology=topology,
            engine_profile=settings.engine_profile,
            parameters_gb=settings.parameters_gb,
            kv_tokens=settings.kv_tokens,
            arrivals=replay_all(trace, part, rate_scale, seed),
            seconds=seconds,
            warm_up=settings.warm_up,
            seed=seed,
        )
        for seed in range(settings.seeds)
        for name, system in named.items()
    ]
    return rate_scale, scenarios


def find_systems(text: str) -> Iterator[tuple[str, NamedSystem]]:
    """The systems of a list with commas, each once. Raises ValueError."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("--systems names none; `livescale systems` lists them")
    for name in names:
        try:
            yield name, find_system(name)
        except ValueError as error:
            raise ValueError(f"--systems: {error}") from None


def read_part(settings: SystemsBenchSettings) -> tuple[Trace, Window]:
    """The whole trace, and which part of it is replayed. Raises ValueError."""
    if settings.trace is None:
        raise ValueError("--trace is missing: give a file such as AzureLLMInferenceTrace_code.csv")
    try:
        trace = read_trace(Path(settings.trace))
        part = parse_window(settings.window)
    except TraceError as error:
        raise ValueError(f"--trace: {error}") from None
    except ValueError as error:
        raise ValueError(f"--window: {error}") from None
    if not cut(trace, part):
        raise ValueError(
            f"--window: no request of {settings.trace} in {settings.window}; it ends at {trace[-1].at:.0f} s"
        )
    return trace, part


def find_cluster(settings: SystemsBenchSettings) -> Topology:
    """The topology with as many GPUs as there are workers. Raises ValueError, which names the option."""
    try:
        return with_workers(find_topology(settings.topology), settings.workers)
    except ValueError as error:
        raise ValueError(f"--topology: {error}") from None


def find_rate_scale(trace: Trace, part: Window, seconds: float, settings: SystemsBenchSettings) -> float:
    """The factor by which the prompts that are replayed take half of what distserve-full can prefill.

    BlitzScale's mean rate is half of what its cluster can serve, so that half of all instances are enough on average.
    Its own system with all instances is bound by those that prefill.
    """
    latency = find_latency(settings.engine_profile)
    rate = CHUNK / latency.seconds(Work(prefill_tokens=CHUNK, prefill_squares=CHUNK**2))
    share = find_system(FULL).values()["prefill_share"]
    assert isinstance(share, float)
    wanted, factor = BUSY_SHARE * share * settings.workers * rate * seconds, 1.0
    for _ in range(ROUNDS):
        factor *= wanted / sum(arrival.prompt_tokens for arrival in replay_all(trace, part, factor, seed=0))
    return factor


def replay_all(trace: Trace, part: Window, rate_scale: float, seed: int) -> Trace:
    """The window, filled to its end: where lengths that follow it run out, they go on from the trace's start."""
    end = trace[-1].at + 1
    longer = tuple(
        replace(arrival, at=arrival.at + again * end) for again in range(ceil(rate_scale) + 1) for arrival in trace
    )
    return fit(replay(longer, replace(part, end=part.end or end), rate_scale, 1.0, seed), CONTEXT)
