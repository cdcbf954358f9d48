"""Runs scenarios that have not been run yet, several at a time, and keeps each run as soon as it is there."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
import msgspec

from livescale.load.bench.systems.play import SystemRun, play
from livescale.load.bench.systems.scenario import Scenario
from livescale.services.worker.engine.heap import keep_freed_memory
from livescale.shared.runtime.files import write_atomically

Tell = Callable[[str], None]


class KeptRuns:
    """A directory with a file for each run, named by the digest of its scenario and code."""

    def __init__(self, directory: Path) -> None:
        """Raises ClickException where the directory cannot be made."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.ClickException(f"--runs {directory}: {error.strerror}; name another directory") from None
        self._directory = directory

    def find(self, digest: str) -> SystemRun | None:
        """The run of this digest; None where there is none, or its file cannot be read."""
        try:
            return msgspec.json.decode(self._file(digest).read_bytes(), type=SystemRun)
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, run: SystemRun) -> None:
        write_atomically(self._file(run.digest), msgspec.json.encode(run))

    def _file(self, digest: str) -> Path:
        return self._directory / f"{digest}.json"


def run_all(scenarios: Sequence[Scenario], kept: KeptRuns, jobs: int, tell: Tell) -> list[SystemRun]:
    """The runs of all scenarios, in their order."""
    digests = [scenario.digest() for scenario in scenarios]
    found = {digest: run for digest in digests if (run := kept.find(digest)) is not None}
    missing = [one for one, digest in zip(scenarios, digests, strict=True) if digest not in found]
    if found:
        tell(f"{len(found)} of {len(scenarios)} runs were kept from before")
    for run in play_all(missing, min(jobs or os.cpu_count() or 1, max(1, len(missing)))):
        kept.keep(run)
        found[run.digest] = run
        tell(f"{len(found)} of {len(scenarios)}: {run.system}, seed {run.seed}, in {run.cpu_seconds:.0f} s of CPU")
    return [found[digest] for digest in digests]


def play_all(scenarios: Sequence[Scenario], jobs: int) -> Iterator[SystemRun]:
    """Play scenarios, each run in the order in which they end."""
    if jobs == 1:
        yield from map(play_one, scenarios)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(play_one, scenario) for scenario in scenarios]
        try:
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def play_one(scenario: Scenario) -> SystemRun:
    """Play one scenario, and say on stderr how far it is."""

    def tell(at: float) -> None:
        of = f"{min(at, scenario.seconds):.0f} of {scenario.seconds:.0f} simulated s"
        late = f", {at - scenario.seconds:.0f} s late" if at > scenario.seconds else ""
        click.echo(f"  {scenario.system}, seed {scenario.seed}: {of}{late}", err=True)

    keep_freed_memory()  # KV that is handed over comes and goes by hundreds of MB
    return play(scenario, tell)
