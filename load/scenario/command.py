"""The command `livescale simulate`: a scenario under virtual time, or where two logs of such runs part."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from livescale.load.report import check_report_path
from livescale.load.scenario.against_live import check_live, run_against_live
from livescale.load.scenario.file import read_scenario
from livescale.load.scenario.page import write_page
from livescale.load.scenario.play import PlayOptions, Progress, play
from livescale.load.scenario.result import Question, SimulationResult, print_result, show
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.simulate.event_log import find_difference
from livescale.load.simulate.seeds.command import refuse_others, seeds_options
from livescale.services.supervisor.checks import BadSettings
from livescale.services.worker.engine.heap import keep_freed_memory
from livescale.shared.runtime.files import write_atomically

TELL_SECONDS = 2.0
FILE = click.Path(path_type=Path, dir_okay=False)
LOG = click.Path(path_type=Path, dir_okay=False, exists=True)


class SecondOfRun(click.FloatRange):
    """A second that comes: neither infinity nor what is no number."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"{value} is not a second that comes; give a number.", param, ctx)
        return found


EPILOG = """
\b
Examples:
  livescale simulate examples/simulate.yaml
  livescale simulate examples/simulate.yaml --seed 7 --report simulated.html --json simulated.json
  livescale simulate examples/simulate.yaml --status-at 30 --why chat --at 60
  livescale simulate --compare one.log other.log
  livescale simulate examples/live.yaml --against-live 3
  livescale simulate --seeds 1000
"""


@click.command(epilog=EPILOG)
@click.argument("scenario", required=False, type=FILE)
@click.option("--seed", type=click.IntRange(0), help="Seed of the run, in place of the scenario's.")
@click.option(
    "--until",
    type=SecondOfRun(0, min_open=True),
    help="Second at which the run ends; by default it ends once all requests have ended.",
)
@click.option("--report", type=FILE, help="File to write the HTML report to.")
@click.option("--json", "output", type=FILE, help="File to write the results to, as JSON.")
@click.option("--log", type=FILE, help="File to write all events of the run to, for --compare.")
@click.option(
    "--wire/--no-wire",
    default=False,
    show_default=True,
    help="Have each reader decode messages for itself, as on a real bus; slower, with the same result.",
)
@click.option(
    "--status-at", type=SecondOfRun(0), help="Print what livescale status would show at this second of the run."
)
@click.option("--why", help="Print what livescale why would say of this model at the second --at.")
@click.option("--at", type=SecondOfRun(0), help="Second of the run that --why is about.")
@click.option(
    "--compare",
    nargs=2,
    type=LOG,
    metavar="A B",
    help="Run nothing, and print the first event in which two logs differ; the exit status is 1 if there is one.",
)
@click.option(
    "--against-live",
    type=click.IntRange(2, 100),
    metavar="RUNS",
    help="Run the scenario this many times in a real system on this machine too, with modelled engines and shaped "
    "links, and tell whether as many simulations lie within what these runs show; the exit status is 1 if not.",
)
@seeds_options
def simulate(
    scenario: Path | None,
    seed: int | None,
    until: float | None,
    report: Path | None,
    output: Path | None,
    log: Path | None,
    wire: bool,
    status_at: float | None,
    why: str | None,
    at: float | None,
    compare: tuple[Path, Path] | None,
    against_live: int | None,
) -> None:
    """Simulate the cluster, load and faults that the file SCENARIO describes, under virtual time.

    Router, registry, planner, monitor, hosts and workers are the real ones. Engines, links and disks are modelled, with
    models of their real sizes. The same scenario and seed give the same digest again, on any machine.
    """
    if compare is not None:
        refuse_others("--compare runs nothing", ("compare",))
        compare_logs(*compare)
        return
    if scenario is None:
        raise click.UsageError("no scenario: name a YAML file, such as examples/simulate.yaml")
    if against_live is not None and until is not None:
        raise click.UsageError("--until ends a simulation, and live runs go on: shorten the scenario")
    for option, path in (("--report", report), ("--json", output), ("--log", log)):
        if path is not None:
            check_report_path(path, option)
    try:
        system = prepare(scenario, seed, wire, live=against_live is not None)
        questions = find_questions(system, status_at, why, at)
        late = [question.at for question in questions if until is not None and question.at > until]
        if late:
            raise ValueError(f"--until ends the run at {until:g} s, and {late[0]:g} s is asked about; ask about less")
        with naming(scenario), nullcontext() if log is None else closing(LateFile(log)) as file:
            keep_freed_memory()  # KV that is handed over comes and goes by hundreds of MB
            result, answers = play(system, PlayOptions(until=until, questions=questions, log=file, tell=Teller()))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    print_result(result)
    for answer in answers:
        show(answer)
    write_results(result, output, report)
    if against_live is not None:
        compare_with_live(scenario, system, result, against_live)


def write_results(result: SimulationResult, output: Path | None, report: Path | None) -> None:
    if output is not None:
        write_atomically(output, msgspec.json.encode(result))
    if report is not None:
        write_page(report, result)


def compare_with_live(path: Path, system: ScenarioSystem, result: SimulationResult, runs: int) -> None:
    """Simulate it again with other delays of messages, so that there are as many simulations as live runs.

    Raises ClickException where too few live runs count. The exit status is 1 where the simulations differ.
    """
    results = [result]
    for number in range(1, runs):
        click.echo(f"simulation {number + 1} of {runs}, with other delays of messages:", err=True)
        results.append(play(system.with_delays(system.seed + number), PlayOptions(tell=Teller()))[0])
    try:
        with naming(path):
            run_against_live(system, results)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def prepare(path: Path, seed: int | None, wire: bool, *, live: bool) -> ScenarioSystem:
    """Read a scenario and what it names, which is to be run `live` too or only simulated. Raises ValueError."""
    checked = read_scenario(path)
    with naming(path):
        system = ScenarioSystem(checked, checked.file.seed if seed is None else seed, wire=wire)
        if live:
            check_live(system)
    return system


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the scenario in errors of what its file tells. Raises ValueError."""
    try:
        yield
    except (ValueError, BadSettings) as error:
        raise ValueError(f"{path}: {error}") from None


def find_questions(
    system: ScenarioSystem, status_at: float | None, why: str | None, at: float | None
) -> list[Question]:
    """What is asked of the run. Raises ValueError."""
    if (why is None) != (at is None):
        raise ValueError("--why names a model and --at a second: give both")
    known = [spec.name for spec in system.specs]
    if why is not None and why not in known:
        raise ValueError(f"--why: there is no model {why!r} in the scenario; name one of {', '.join(known)}")
    asked = [] if status_at is None else [Question(status_at)]
    return asked if why is None or at is None else [*asked, Question(at, why)]


class LateFile:
    """A file that is emptied once there is something to write: until then a run may turn out to be impossible."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Teller:
    """Says on stderr how far a run is, every two seconds of real time."""

    def __init__(self) -> None:
        self._begun = self._told = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            speed = progress.at / (now - self._begun)
            told = f"{progress.came} requests came, {progress.ended} of them ended"
            click.echo(f"  {progress.at:.0f} s simulated, {told}; {speed:.1f} times as fast as real time", err=True)


def compare_logs(one: Path, other: Path) -> None:
    """Print where two logs part. The exit status is 1 if they do."""
    found = find_difference(one, other)
    if found is None:
        click.echo("the logs are the same")
        return
    click.echo(f"event {found.number} is the first that differs:")
    for path, line in ((one, found.one), (other, found.other)):
        click.echo(f"  {path}: {'the log has ended' if line is None else line}")
    sys.exit(1)
