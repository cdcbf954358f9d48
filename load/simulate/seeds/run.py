"""Runs the random system of a seed, and checks what must hold of it."""

import asyncio
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace
from structlog.testing import capture_logs

from livescale.load.simulate.seeds.clients import Clients
from livescale.load.simulate.seeds.history import History, SeedFault
from livescale.load.simulate.seeds.invariants import REST_SECONDS, Violation, check
from livescale.load.simulate.seeds.looks import counted_twice, loads_of_others, unrest, waits_for_dead, waits_for_told
from livescale.load.simulate.seeds.policy_checks import policy_troubles
from livescale.load.simulate.seeds.reports import LastReports, copies
from livescale.load.simulate.seeds.system import SeedSystem, kept, random_system
from livescale.load.simulate.seeds.troublemaker import Troublemaker
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.load.simulate.start import quiet, register, until, workers_in
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Named
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.subjects import MANIFEST

START_SECONDS = 120.0
LIMIT_SECONDS = 600.0
START_LOOK_SECONDS = 0.25
POLICY_LOOK_SECONDS = 0.25
REST_LOOK_SECONDS = 0.5
COMMAND_SECONDS = 5.0


class SeedResult(msgspec.Struct, frozen=True):
    """What came of one seed: the system, violated rules, a digest, and its seconds of virtual time."""

    system: SeedSystem
    violations: list[Violation]
    digest: str
    seconds: float


class Lasting:
    """Notes for how long at most each of several things has been so without a break: in `longest`."""

    def __init__(self, longest: dict[tuple[str, str], float]) -> None:
        self._longest = longest
        self._since: dict[tuple[str, str], float] = {}

    def note(self, things: Iterable[tuple[str, str]], now: float) -> None:
        """Note what is so now, and that nothing else is."""
        self._since = {one: self._since.get(one, now) for one in things}
        for one, since in self._since.items():
            self._longest[one] = max(self._longest.get(one, 0.0), now - since)


class SeedRun:
    """One run of a random system. `history` fills meanwhile."""

    def __init__(self, system: SeedSystem, cluster: WatchedCluster, tasks: asyncio.TaskGroup) -> None:
        self._system = system
        self._cluster = cluster
        self._tasks = tasks
        self.history = cluster.seen
        self._reports = LastReports(cluster)
        self._clients = Clients(cluster, system.asks)
        self._trouble = Troublemaker(cluster, self._clients, system.seed)
        self._right_at = self._once_at = 0.0
        self._awaited, self._told = Lasting(self.history.awaited), Lasting(self.history.told)

    @property
    def struck(self) -> list[SeedFault]:
        """The faults that have happened, with whom they befell."""
        return self._trouble.struck

    async def run(self) -> None:
        """Start the system, disturb it, and wait until it is at rest."""
        self._cluster.start_all()
        for spec in self._system.specs:
            await register(self._cluster, spec)
        if not self._system.early:
            await until(self._is_ready, START_SECONDS, START_LOOK_SECONDS)
        self.history.ready_at = machine_time()
        looking = self._tasks.create_task(self._look(), name="looks")
        clients = self._tasks.create_task(self._clients.run(), name="clients")
        await self._trouble.run(self._system.faults)
        self.history.calm_at = machine_time()
        await self._rest()
        for task in (looking, clients):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await clients
        await self._trouble.close()
        self.history.crashes = [f"{id} at {at:.2f} s: {describe(error)}" for at, id, error in self._trouble.crashes]
        self.history.answers = sorted(self._clients.answers, key=lambda answer: answer.number)

    async def _is_ready(self) -> bool:
        """Whether everything serves that is to serve without load."""
        await self._learn_all()
        wanted = sum(spec.min_instances * spec.tensor_parallel_size for spec in self._system.specs)
        is_known = len(self.history.versions) == len(self._system.specs)
        return is_known and len(await workers_in(self._cluster, "serving")) >= wanted

    async def _learn_all(self) -> None:
        for spec in self._system.specs:
            if spec.name not in self.history.versions:
                await self._learn(spec)

    async def _learn(self, spec: ModelSpec) -> None:
        with suppress(BusError):
            named = Named(model=spec.name)
            manifest: Manifest = await self._cluster.operator.call(MANIFEST, named, timeout=COMMAND_SECONDS)
            self.history.versions[spec.name] = manifest.version
            self.history.sizes[spec.name] = manifest.size_bytes

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLICY_LOOK_SECONDS)
            self._note_counts()
            now, history, cluster = machine_time(), self.history, self._cluster
            self._awaited.note(waits_for_dead(cluster), now)
            self._told.note(waits_for_told(cluster), now)
            troubles, strays = history.troubles, history.strays
            troubles += [found for found in policy_troubles(cluster) if found not in troubles]
            strays += [found for found in loads_of_others(cluster, history.loads) if found not in strays]

    def _note_counts(self) -> None:
        """Note how long a router has counted requests as running, although every client has its answer."""
        now, history = machine_time(), self.history
        can_be_wrong = history.calm_at and self._clients.are_complete
        if not (can_be_wrong and any(queue.running for queue in self._reports.queues())):
            self._right_at = now
        history.counted_for = max(history.counted_for, now - self._right_at)
        if not counted_twice(self._cluster):
            self._once_at = now
        history.twice_for = max(history.twice_for, now - self._once_at)

    async def _rest(self) -> None:
        """Wait until nothing is left to do, for as long as that may take."""
        history = self.history
        deadline = history.calm_at + REST_SECONDS
        while True:
            now = machine_time()
            for model in copies(self._reports.of_running()):
                history.copied_at.setdefault(model, now)
            await self._learn_all()
            lacking = [f"no copy of {name} is back" for name in history.sizes if name not in history.copied_at]
            history.amiss = self._clients.missing() or await unrest(self._cluster, self._reports) or lacking
            if not history.amiss:
                history.rested_at = machine_time()
            if not history.amiss or now >= deadline:
                return
            await asyncio.sleep(REST_LOOK_SECONDS)


def describe(error: BaseException) -> str:
    """An error in a line; of a group its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


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
