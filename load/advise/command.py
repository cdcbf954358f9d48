"""The command `livescale advise`: the smallest pool, and the bounds of scaling, that meet SLOs under a trace."""

import sys
import time
from pathlib import Path

import click

from livescale.load.advise.advice import Adviser
from livescale.load.advise.judge import ShareSlos
from livescale.load.advise.page import print_advice, write_page
from livescale.load.advise.trial import Workload, check_traces, count_gpus
from livescale.load.report import check_report_path
from livescale.load.scenario.arrivals import Arrivals
from livescale.load.scenario.play import Progress
from livescale.services.supervisor.checks import BadSettings
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.worker.engine.heap import keep_freed_memory
from livescale.shared.runtime.yaml_file import convert

TELL_SECONDS = 5.0
FILE = click.Path(path_type=Path, dir_okay=False)
SECONDS = click.FloatRange(0, min_open=True)

EPILOG = """
\b
Examples:
  livescale advise --trace azure_code_2023.csv --topology cluster-b --models chat=8b --ttft-slo 1 --tbt-slo 0.1
  livescale advise --trace a.csv --models chat=8b --trace b.csv --models code=7b --topology cluster-a \\
    --ttft-slo 1 --tbt-slo 0.1 --window 0+600 --report advice.html
"""


def to_model(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[ModelSettings, ...]:
    """Models that are given as NAME=PATH. Raises BadParameter."""
    found = []
    for text in texts:
        name, _, path = text.partition("=")
        if not path:
            raise click.BadParameter(f"{text!r} names no checkpoint; write NAME=SIZE or NAME=DIRECTORY", ctx, param)
        try:
            model = convert({"name": name, "path": path}, ModelSettings)
        except ValueError as error:
            raise click.BadParameter(f"{text!r}: {error}", ctx, param) from None
        assert isinstance(model, ModelSettings)
        found.append(model)
    return tuple(found)


@click.command(epilog=EPILOG)
@click.option("--trace", "traces", multiple=True, required=True, type=FILE, help="Trace of requests; one a model.")
@click.option("--topology", required=True, help="The cluster: a file, or a shipped one such as cluster-b.")
@click.option(
    "--models",
    multiple=True,
    required=True,
    callback=to_model,
    metavar="NAME=PATH",
    help="A model, and its size, such as 8b, or a directory with its config.json; the next --models gets the next "
    "--trace.",
)
@click.option("--ttft-slo", required=True, type=SECONDS, help="Seconds that a first token may take.")
@click.option("--tbt-slo", required=True, type=SECONDS, help="Seconds between tokens, on average of a request.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="Share of all requests that must meet both SLOs.",
)
@click.option("--window", default="0+300", show_default=True, help="Part of the traces: START+SECONDS.")
@click.option("--rate-scale", type=SECONDS, default=1.0, show_default=True, help="Factor on the rates of the traces.")
@click.option(
    "--engine-profile",
    default="llama3-8b-a100",
    show_default=True,
    help="How fast GPUs run the models: a file that `livescale profile` wrote, or the name of a shipped profile.",
)
@click.option(
    "--tensor-parallel-size",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of GPUs that make up an instance.",
)
@click.option("--system", default="", help="Name of a system whose settings are used; `livescale systems` lists them.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all simulations.")
@click.option("--report", type=FILE, help="File to write the HTML report to.")
def advise(
    traces: tuple[Path, ...],
    topology: str,
    models: tuple[ModelSettings, ...],
    ttft_slo: float,
    tbt_slo: float,
    share: float,
    window: str,
    rate_scale: float,
    engine_profile: str,
    tensor_parallel_size: int,
    system: str,
    seed: int,
    report: Path | None,
) -> None:
    """Find the smallest pool of workers, and the fewest instances in it, that meet SLOs under a trace.

    Each step is a simulation (see `livescale simulate`). The search assumes that more workers or instances do not hurt.
    Then it shows what breaks first: with one GPU less, with one link half as fast, and with twice the bursts. The exit
    status is 1 if no pool of the topology holds.
    """
    if len(traces) != len(models):
        raise click.UsageError(f"{len(traces)} --trace for {len(models)} --models: give a trace for each model")
    if report is not None:
        check_report_path(report, "--report")
    settings: dict[str, object] = {"engine-profile": engine_profile, "tensor-parallel-size": tensor_parallel_size}
    try:
        workload = Workload(
            topology=topology,
            models=models,
            arrivals=[
                Arrivals(model=model.name, trace=str(trace), window=window, rate_scale=rate_scale)
                for model, trace in zip(models, traces, strict=True)
            ],
            seconds=check_traces(traces, window),
            settings={**settings, "system": system} if system else settings,
            seed=seed,
        )
        gpus, teller = count_gpus(topology), TrialTeller()
        keep_freed_memory()
        advice = Adviser(workload, ShareSlos(ttft_slo, tbt_slo, share), gpus, teller.line, teller).advise()
    except (ValueError, BadSettings) as error:
        raise click.UsageError(str(error)) from None
    print_advice(advice)
    if report is not None:
        write_page(report, advice)
    sys.exit(0 if advice.best is not None else 1)


class TrialTeller:
    """Says on stderr what each simulation came to, and every few seconds how far one is."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def line(self, text: str) -> None:
        click.echo(text, err=True)

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            click.echo(f"  {progress.at:.0f} s simulated, {progress.ended} of {progress.came} requests ended", err=True)
