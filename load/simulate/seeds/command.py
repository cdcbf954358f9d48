"""The command that runs random systems from seeds, shrinks what fails, and says how to play it again."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import click
import msgspec
from msgspec import Meta

from livescale.load.simulate.seeds.invariants import Violation
from livescale.load.simulate.seeds.run import SeedResult, played
from livescale.load.simulate.seeds.shrink import shrink
from livescale.load.simulate.seeds.system import random_system
from livescale.load.stats import percentile
from livescale.services.cli.options import settings_options
from livescale.shared.runtime.settings import Settings

COMMAND = "livescale simulate-seeds"
SHOWN = 5  # violations of a seed
NONE = "none"


class SeedsSettings(Settings, frozen=True, kw_only=True):
    """Which seeds are run, and what of them."""

    seeds: Annotated[int, Meta(description="Number of seeds", ge=1)] = 100
    first: Annotated[int, Meta(description="The first seed", ge=0)] = 0
    faults: Annotated[
        str,
        Meta(
            description="Of one seed, the faults that happen, by their numbers from 0, separated by commas; none is "
            "none of them. By default all",
            pattern=r"^(none|\d+(,\d+)*)?$",
        ),
    ] = ""
    asks: Annotated[
        str,
        Meta(
            description="Of one seed, the requests that are sent, as with --faults",
            pattern=r"^(none|\d+(,\d+)*)?$",
        ),
    ] = ""
    shrink_tries: Annotated[
        int, Meta(description="Most runs that are spent to make a failing seed shorter; 0 leaves it as it is", ge=0)
    ] = 60

    def __post_init__(self) -> None:
        if self.seeds != 1 and (self.faults or self.asks):
            raise ValueError("faults, asks: they are of one seed; say which with --first, and --seeds 1")


class Finding(msgspec.Struct, frozen=True):
    """A seed that failed: what does not hold, and the command that plays the shortest system that still fails so."""

    seed: int
    violations: list[Violation]
    command: str
    shortest: SeedResult


@click.command("simulate-seeds")
@settings_options(SeedsSettings)
def simulate_seeds(settings: SeedsSettings) -> None:
    """Run small random systems with random faults in a simulation, and check what must hold of each.

    A seed stands for machines, models, settings, requests and faults. All services are the real ones; engines, links
    and disks are modelled.

    \b
    livescale simulate-seeds --seeds 1000
    livescale simulate-seeds --seeds 1 --first 17 --faults 0,2 --asks 3

    A seed that fails is made shorter, with fewer faults and requests, and printed with the command that plays it again.
    The exit status is 1 if any failed.
    """
    try:
        findings = run_seeds(settings, lambda line: click.echo(line, err=True))
    except IndexError:
        raise click.UsageError(f"--faults, --asks: {random_system(settings.first).describe()}") from None
    for finding in findings:
        click.echo(msgspec.json.encode({"seed": finding.seed, "command": finding.command}))
    sys.exit(1 if findings else 0)


def run_seeds(settings: SeedsSettings, tell: Callable[[str], None]) -> list[Finding]:
    """Run the seeds one after the other, and tell what is found. Raises IndexError for a fault or request that a seed
    does not have."""
    findings, seconds = list[Finding](), list[float]()
    asks, faults = numbers(settings.asks), numbers(settings.faults)
    for seed in range(settings.first, settings.first + settings.seeds):
        began = time.process_time()
        result = played(seed, asks, faults)
        seconds.append(time.process_time() - began)
        if result.violations:
            finding = examined(seed, result, asks, faults, settings.shrink_tries)
            findings.append(finding)
            for line in lines_of(finding):
                tell(line)
    median, slowest = percentile(seconds, 50), percentile(seconds, 99)
    tell(f"{len(findings)} of {settings.seeds} seeds failed; {median:.2f} CPU s a seed (median), {slowest:.2f} (p99)")
    return findings


def numbers(text: str) -> list[int] | None:
    """Places as they are written in an option; None where all are meant."""
    if not text:
        return None
    return [] if text == NONE else [int(number) for number in text.split(",")]


def examined(
    seed: int, result: SeedResult, asks: Sequence[int] | None, faults: Sequence[int] | None, tries: int
) -> Finding:
    """Look for fewer faults, then for fewer requests, with which the first rule that does not hold still does not."""
    rule, whole = result.violations[0].rule, random_system(seed)
    asks = range(len(whole.asks)) if asks is None else asks
    faults = range(len(whole.faults)) if faults is None else faults
    shortest, left = result, tries

    def fails(asks: Sequence[int], faults: Sequence[int]) -> bool:
        nonlocal shortest, left
        left -= 1
        tried = played(seed, asks, faults)
        if all(violation.rule != rule for violation in tried.violations):
            return False
        shortest = tried
        return True

    least_faults = shrink(faults, lambda some: fails(asks, some), tries // 2)
    least_asks = shrink(asks, lambda some: fails(some, least_faults), left)
    command = f"{COMMAND} --seeds 1 --first {seed} --faults {listed(least_faults)} --asks {listed(least_asks)}"
    return Finding(seed, result.violations, command, shortest)


def listed(places: Sequence[int]) -> str:
    return ",".join(str(place) for place in places) or NONE


def lines_of(finding: Finding) -> list[str]:
    """The finding for people."""
    return [
        f"seed {finding.seed}: {random_system(finding.seed).describe()}",
        *(f"  {violation}" for violation in finding.violations[:SHOWN]),
        f"  with {len(finding.shortest.system.asks)} requests and these faults it still fails:",
        *(f"    {fault.describe()}" for fault in finding.shortest.system.faults),
        *(f"  {violation}" for violation in finding.shortest.violations[:SHOWN]),
        f"  {finding.command}",
    ]
