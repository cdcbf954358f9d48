"""`livescale simulate --against-live`: the same scenario live, several times, and how as many simulations compare."""

import asyncio
import sys
from collections.abc import Sequence

import click

from livescale.load.kept import logged
from livescale.load.scenario.fidelity import HEADINGS, FidelityRow, ObservedRun, compare
from livescale.load.scenario.live_run import live_settings, run_live
from livescale.load.scenario.requests import draw_requests
from livescale.load.scenario.result import SimulationResult
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.stats import new_table
from livescale.services.cli.tables import open_console


def observe(result: SimulationResult) -> ObservedRun:
    """What a simulation came to, in the figures that a live run has too."""
    return ObservedRun.of(result.scales, result.run.requests, result.used_seconds)


def run_against_live(system: ScenarioSystem, results: Sequence[SimulationResult]) -> None:
    """Run it live once for each simulation, and print how these compare. The exit status is 1 where they differ.

    Raises ValueError where too few live runs count.
    """
    requests, runs, counted = draw_requests(system), len(results), list[ObservedRun]()
    for number in range(1, runs + 1):
        with logged() as echo:
            run = asyncio.run(run_live(system, requests, tell, echo))
        told = f"void: {run.void}" if run.void else f"{len(run.steps)} decisions, {len(run.ttft)} answers"
        click.echo(f"live run {number} of {runs}: {told}", err=True)
        if run.void is None:
            counted.append(run)
    rows = compare([observe(result) for result in results], counted)
    print_rows(rows, f"{system.scenario.name}, simulated {runs} times, against {len(counted)} of {runs} live runs")
    sys.exit(0 if all(row.holds for row in rows) else 1)


def tell(text: str) -> None:
    click.echo(f"  {text}", err=True)


def check_live(system: ScenarioSystem) -> None:
    """Raises ValueError for a scenario that cannot be run live."""
    live_settings(system)


def print_rows(rows: list[FidelityRow], title: str) -> None:
    table = new_table(title)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    open_console().print(table)
