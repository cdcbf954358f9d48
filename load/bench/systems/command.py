"""`livescale bench systems`: systems to compare with on the same arrivals, under virtual time."""

import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.systems.page import write_page
from livescale.load.bench.systems.rows import BENCH, Results, by_system, find_slo, rows_of, summarise
from livescale.load.bench.systems.runs import KeptRuns, run_all
from livescale.load.bench.systems.scenario import CONTEXT, Scenario, with_workers
from livescale.load.bench.systems.settings import SystemsBenchSettings
from livescale.load.report import check_report_path
from livescale.load.trace import Trace, Window, fit, parse_window, replay
from livescale.load.trace import window as cut
from livescale.load.trace_files import TraceError, read_trace
from livescale.services.cli.options import settings_options
from livescale.services.cli.systems import NamedSystem, find_system
from livescale.shared.model.latency import Work, find_latency
from livescale.shared.runtime.files import write_atomically
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Topology

BUSY_SHARE = 0.5  # of what the system with all workers can serve, by default
FULL = "distserve-full"
ROUNDS = 4  # in which the rate is found: with another one, other lengths are replayed
CHUNK = 2048  # tokens of a prompt that are computed in one step
# The settings that the results repeat as they are.
TOLD = ("window", "workers", "topology", "engine_profile", "parameters_gb", "seeds")


@click.command()
@settings_options(SystemsBenchSettings)
def systems(settings: SystemsBenchSettings) -> None:
    """Compare systems on the same arrivals of a trace, under virtual time.

    Router, registry, planner, monitor, hosts and workers are the real ones. Engines, links and disks are modelled: they
    take the time of the GPUs and the cluster that are named. So 8 to 32 workers run on one CPU core, and every seed
    gives the same figures again.

    \b
    livescale bench systems --trace azure_code_2023.csv --window 845+60
    livescale bench systems --trace T.csv --systems serverlessllm,+zigzag,distserve-full --seeds 5 --workers 16

    A run takes about a second of CPU for each second of the window. It is kept in --runs as soon as it ends, so a
    comparison that was interrupted goes on where it was.

    SLOs are five times the means of distserve-full, or of vllm-full. The exit status is 1 if a bar was missed.
    """
    check_report_path(Path(settings.report))
    try:
        rate_scale, scenarios = make_scenarios(settings)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    printer = RecordPrinter(BENCH)
    arrivals = len(scenarios[0].arrivals)
    printer.progress(
        f"{len(scenarios)} runs of {arrivals} requests in {scenarios[0].seconds:g} s, rate x{rate_scale:.2f}"
    )
    runs = run_all(scenarios, KeptRuns(Path(settings.runs)), settings.jobs, printer.progress)
    named = by_system(runs)
    reference, slo = find_slo(named)
    summaries = [summarise(of, slo) for of in named.values()]
    for record in rows_of(summaries):
        printer.emit(record)
    kept = printer.finish()
    scenario = {name: getattr(settings, name) for name in TOLD}
    results = Results(
        trace=Path(settings.trace or "").name,
        rate_scale=rate_scale,
        reference=reference,
        slo=slo,
        systems=summaries,
        records=printer.records,
        runs=runs,
        **scenario,
    )
    save(Path(settings.output), results)
    write_page(Path(settings.report), results, printer.conditions())
    printer.progress(f"Report: {settings.report}; results: {settings.output}")
    sys.exit(0 if kept else 1)


def save(path: Path, results: Results) -> None:
    """Raises ClickException, which names the path."""
    try:
        write_atomically(path, msgspec.json.encode(results))
    except OSError as error:
        raise click.ClickException(f"--output {path} cannot be written: {error.strerror}") from None


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
