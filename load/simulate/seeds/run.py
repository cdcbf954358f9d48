"""Runs the random system of a seed, and checks what must hold of it."""

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from structlog.testing import capture_logs

from livescale.load.simulate.seeds.history import History, updated
from livescale.load.simulate.seeds.invariants import Violation, check
from livescale.load.simulate.seeds.learn_models import learn_from_tokens
from livescale.load.simulate.seeds.seed_run import SeedRun, describe
from livescale.load.simulate.seeds.system import SeedSystem, kept, random_system
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.load.simulate.start import quiet
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.virtual_clock import machine_time

LIMIT_SECONDS = 600.0


class SeedResult(msgspec.Struct, frozen=True):
    """What came of one seed: the system, violated rules, a digest, and its seconds of virtual time."""

    system: SeedSystem
    violations: list[Violation]
    digest: str
    seconds: float


def played(seed: int, asks: Sequence[int] | None = None, faults: Sequence[int] | None = None) -> SeedResult:
    """Run the system of a seed, with all of its requests and faults or only those at these places."""
    system = random_system(seed)
    places = range(len(system.asks)) if asks is None else asks, range(len(system.faults)) if faults is None else faults
    return play(kept(system, *places))


def play(system: SeedSystem) -> SeedResult:
    """Run a system, and check what must hold of it."""
    history, ended = History(), ""
    seconds = 0.0

    async def main() -> None:
        nonlocal history, seconds
        async with asyncio.TaskGroup() as tasks:
            cluster = WatchedCluster(system.cluster, tasks)
            run = SeedRun(system, cluster, tasks)
            history = run.history
            try:
                await run.run()
            finally:
                history.struck = run.struck
                history.events, history.digest = cluster.log.events, cluster.log.digest()
                if updated(run.struck):
                    learn_from_tokens(system.asks, history)
                seconds = machine_time()
                await cluster.close()

    with quiet(), capture_logs() as logs:
        try:
            virtual_time.run(main(), limit_seconds=LIMIT_SECONDS)
        except Exception as error:  # noqa: BLE001 whatever it is, it is a finding
            ended = describe(error)
    history.troubles += failed_calls(logs)
    violations = [Violation("run", ended)] if ended else check(replace(system, faults=history.struck), history)
    return SeedResult(system, violations, history.digest, seconds)


def failed_calls(logs: Sequence[MutableMapping[str, Any]]) -> list[str]:
    """The calls that ended in an error nobody expected, each once."""
    failed = (one for one in logs if one["event"] == "handler_failed")
    return list(dict.fromkeys(" ".join(f"{name}={one[name]}" for name in sorted(one)) for one in failed))
