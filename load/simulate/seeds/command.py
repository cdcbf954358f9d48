"""The seeds of `livescale simulate`: random systems one by one; what fails is shrunk, and can be played again."""

import functools
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import ParamSpec

import click
import msgspec
from click.core import ParameterSource

from livescale.load.simulate.seeds.invariants import Violation
from livescale.load.simulate.seeds.run import SeedResult, played
from livescale.load.simulate.seeds.shrink import shrink
from livescale.load.simulate.seeds.system import random_system
from livescale.load.stats import percentile

P = ParamSpec("P")
COMMAND = "livescale simulate"
SHOWN = 5  # violations of a seed
TRIES = 60  # runs that are spent to make a failing seed shorter
TELL_SECONDS = 2.0
NONE = "none"
OPTIONS = ("seeds", "first", "faults", "asks")


class SeedsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which seeds are run; of one seed perhaps only some faults and requests, by their places."""

    seeds: int
    first: int = 0
    faults: list[int] | None = None
    asks: list[int] | None = None
    tries: int = TRIES


def to_places(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int] | None:
    """Places as they are written in an option; None where all are meant."""
    if text is None:
        return None
    try:
        return [] if text == NONE else [int(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: give numbers from 0 with commas between, or {NONE}", ctx, param) from None


def seeds_options(command: Callable[P, None]) -> Callable[..., None]:
    """Decorate a click command so that with --seeds it runs random systems instead."""

    @click.option(
        "--seeds",
        type=click.IntRange(1),
        help="Run no scenario, but this many small random systems with faults, and check what must hold of each; "
        "the exit status is 1 if any fails.",
    )
    @click.option(
        "--first", type=click.IntRange(0), default=0, show_default=True, help="First seed of the --seeds that are run."
    )
    @click.option(
        "--faults",
        callback=to_places,
        help="With --seeds 1, run only these faults of the seed: numbers from 0, or none.",
    )
    @click.option(
        "--asks",
        callback=to_places,
        help="With --seeds 1, send only these requests of the seed: numbers from 0, or none.",
    )
    @functools.wraps(command)
    def call(
        seeds: int | None,
        first: int,
        faults: list[int] | None,
        asks: list[int] | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        if seeds is None:
            strays = [stray for stray in given() if stray.name in OPTIONS]
            if strays:
                raise click.UsageError(f"{named(strays[0])} goes with --seeds: give how many")
            command(*args, **kwargs)
        else:
            refuse_others("--seeds makes up its systems", OPTIONS)
            simulate_seeds(SeedsRequest(seeds=seeds, first=first, faults=faults, asks=asks))

    return call


def given() -> list[click.Parameter]:
    """What stands on the command line of the current command; what comes from the environment does not."""
    ctx = click.get_current_context()
    here = ParameterSource.COMMANDLINE
    return [one for one in ctx.command.params if one.name and ctx.get_parameter_source(one.name) is here]


def named(parameter: click.Parameter) -> str:
    return parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]


def refuse_others(why: str, allowed: Collection[str]) -> None:
    """Raise UsageError where the command line has anything that would be left unread."""
    strays = [stray for stray in given() if stray.name not in allowed]
    if strays:
        raise click.UsageError(f"{why}: leave {named(strays[0])} out")


def simulate_seeds(request: SeedsRequest) -> None:
    """Run the seeds, print what failed, and end this process with 1 if any did. Raises UsageError."""
    if request.seeds != 1 and (request.faults is not None or request.asks is not None):
        raise click.UsageError("--faults and --asks are of one seed: say which with --first, and --seeds 1")
    try:
        findings = run_seeds(request, lambda line: click.echo(line, err=True))
    except IndexError:
        raise click.UsageError(f"--faults, --asks: {random_system(request.first).describe()}") from None
    for finding in findings:
        click.echo(msgspec.json.encode({"seed": finding.seed, "command": finding.command}))
    sys.exit(1 if findings else 0)


class Finding(msgspec.Struct, frozen=True):
    """A seed that failed: what does not hold, and the command that plays the shortest system that still fails so."""

    seed: int
    violations: list[Violation]
    command: str
    shortest: SeedResult


def run_seeds(request: SeedsRequest, tell: Callable[[str], None]) -> list[Finding]:
    """Run the seeds one after the other, and tell what is found. Raises IndexError for a fault or request that a seed
    does not have."""
    findings, seconds = list[Finding](), list[float]()
    asks, faults = request.asks, request.faults
    told = time.monotonic()
    for seed in range(request.first, request.first + request.seeds):
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            tell(f"  {len(seconds)} of {request.seeds} seeds were run, {len(findings)} failed")
        began = time.process_time()
        result = played(seed, asks, faults)
        seconds.append(time.process_time() - began)
        if result.violations:
            tell(f"seed {seed} fails; looking for fewer faults and requests with which it still does")
            finding = examined(seed, result, asks, faults, request.tries)
            findings.append(finding)
            for line in lines_of(finding):
                tell(line)
    median, slowest = percentile(seconds, 50), percentile(seconds, 99)
    tell(f"{len(findings)} of {request.seeds} seeds failed; {median:.2f} CPU s a seed (median), {slowest:.2f} (p99)")
    return findings


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
    """Return a finding as lines for people: the system, what it violates, and the shortest case."""
    return [
        f"seed {finding.seed}: {random_system(finding.seed).describe()}",
        *(f"  {violation}" for violation in finding.violations[:SHOWN]),
        f"  with {len(finding.shortest.system.asks)} requests and these faults it still fails:",
        *(f"    {fault.describe()}" for fault in finding.shortest.system.faults),
        *(f"  {violation}" for violation in finding.shortest.violations[:SHOWN]),
        f"  {finding.command}",
    ]
