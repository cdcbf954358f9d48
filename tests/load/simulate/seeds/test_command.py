"""The command: what fails is shrunk and printed with a command that plays it again, and that command does."""

import shlex
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from livescale.load.scenario.command import simulate
from livescale.load.simulate.seeds.command import SeedsRequest, run_seeds
from livescale.load.simulate.seeds.history import History
from livescale.load.simulate.seeds.invariants import RULES
from livescale.load.simulate.seeds.run import SeedResult
from livescale.load.simulate.seeds.system import SeedSystem, random_system

SEED = next(
    seed
    for seed, system in ((seed, random_system(seed)) for seed in range(300))
    if len(system.faults) > 3 and len(system.asks) < 5 and not any(fault.when for fault in system.faults)
)
SYSTEM = random_system(SEED)
GUILTY = SYSTEM.faults[2], SYSTEM.asks[-1]


def guilty(system: SeedSystem, history: History) -> Iterator[str]:
    """Broken by one fault together with one request."""
    fault, ask = GUILTY
    if fault in system.faults and ask in system.asks:
        yield "both are there"


def call(*options: str) -> Result:
    return CliRunner().invoke(simulate, options)


def test_seeds_that_hold_are_told_in_a_line() -> None:
    result = call("--seeds", "2", "--first", str(SEED))
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("0 of 2 seeds failed; ")  # after progress, if it took long


def test_progress_is_told_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100))  # a second passes with each look at the time
    monkeypatch.setattr("livescale.load.simulate.seeds.command.time.monotonic", lambda: float(next(times)))
    monkeypatch.setattr("livescale.load.simulate.seeds.command.played", lambda *some: SeedResult(SYSTEM, [], "", 1.0))
    told: list[str] = []
    run_seeds(SeedsRequest(seeds=4), told.append)
    assert told[:-1] == ["  1 of 4 seeds were run, 0 failed", "  3 of 4 seeds were run, 0 failed"]


def test_what_fails_is_made_shorter_and_its_command_plays_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "guilty", guilty)
    told: list[str] = []
    [finding] = run_seeds(SeedsRequest(seeds=1, first=SEED), told.append)
    assert (finding.shortest.system.faults, finding.shortest.system.asks) == ([GUILTY[0]], [GUILTY[1]])
    assert told[-2].strip() == finding.command
    assert "  guilty: both are there" in told
    again = call(*shlex.split(finding.command)[2:])
    assert again.exit_code == 1
    assert f"--faults 2 --asks {len(SYSTEM.asks) - 1}" in again.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--seeds", "2", "--faults", "1"), "of one seed"),
        (("--seeds", "1", "--faults", "some"), "give numbers"),
        (("--seeds", "1", "--asks", "999"), "requests"),
        (("one.yaml", "--seeds", "1"), "--seeds makes up its systems: leave SCENARIO out"),
        (("--seeds", "1", "--report", "one.html"), "--seeds makes up its systems: leave --report out"),
        (("one.yaml", "--first", "3"), "--first goes with --seeds: give how many"),
    ],
)
def test_a_part_that_is_not_there_is_refused(options: tuple[str, ...], why: str) -> None:
    result = call(*options)
    assert result.exit_code == 2
    assert why in result.output
